PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH  := $(VENV)/.bench
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.PHONY: demo test test-slow lint docs docs-serve docs-look bench bench-quick trust clean

demo: $(STAMP)            ## fit a simulated logistic regression with a million rows
	$(BIN)/tallmc demo

test: lint                ## everything that must hold, in minutes
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(STAMP)       ## the long checks too, also every experiment in its reduced form
	@echo "about three hours on two cores: half an hour of reduced experiments, the rest long runs"
	$(BIN)/python -m pytest -n 2 --durations=20

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)            ## the documentation site, into site/; runs the examples of the gallery that have changed
	$(BIN)/python -m website
	$(MKDOCS) build --strict

docs-serve: docs          ## show the site, at http://127.0.0.1:8000
	$(MKDOCS) serve

docs-look: docs           ## screenshots of every page by Chromium, and a check that no page overflows
	$(BIN)/pip install --quiet playwright
	$(BIN)/python -m website.look

bench: $(BENCH)           ## speed against the peers, as ratios measured in one run; writes docs/performance.md
	$(BIN)/python -m benchmarks --page

bench-quick: $(BENCH)     ## the most important of it, in minutes
	$(BIN)/python -m benchmarks --quick

trust: $(BENCH)           ## real errors, reported errors and verdicts of every method; writes docs/trust.md, in an hour
	$(BIN)/python -m benchmarks.trust

clean:
	rm -rf $(VENV) .bench site docs/gallery docs/reference

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

$(BENCH): $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[bench]"
	touch $@
