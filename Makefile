PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow lint bench clean

demo: $(STAMP)            ## fit a simulated logistic regression with a million rows
	$(BIN)/tallmc demo

test: lint                ## everything that must hold, in minutes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)       ## the long checks too
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)           ## speed, as ratios measured in one run
	$(BIN)/pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@
