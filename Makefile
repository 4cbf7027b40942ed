PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH  := $(VENV)/.bench
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile
# In the folder of the tests' cache: another clone then has its types checked in seconds.
TYPES  := $(if $(filter off,$(TALLMC_TEST_CACHE)),.mypy_cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tallmc-tests/mypy)
# Examples of pages are short runs, whose draws are doubtful. Tests read the verdicts that matter.
SHORT  := -W ignore::tallmc.SamplingWarning -W ignore::tallmc._fit.FitNote
# As a module, so that MkDocs finds the package website.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# Threads of OpenBLAS spin while they wait, so two of them are slower than one beside other work.
export OPENBLAS_NUM_THREADS := 1

# Every process of the tests would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# uv is several times as fast as pip, but does not read pip's settings, such as those of a mirror.
install = $(BIN)/pip install --quiet uv && $(BIN)/uv pip install --quiet --no-cache --python $(BIN)/python -c constraints.txt $(1) || $(BIN)/pip install --quiet -c constraints.txt $(1)

.PHONY: demo test test-fast test-slow lint docs docs-serve docs-look docs-figures dist test-oldest test-newest
.PHONY: bench bench-quick trust clean

demo: $(STAMP)            ## fit a simulated logistic regression with a million rows
	$(BIN)/tallmc demo

test: $(STAMP)            ## everything that must hold, with lint and types beside it, in minutes
	$(MAKE) --no-print-directory --jobs=2 lint test-fast

# Options of XLA that halve the time of a compilation. The other commands compile as users do.
test-fast: export XLA_FLAGS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=1
test-fast: $(STAMP)
	$(PYTEST) --timeout=300 -m "not slow and not docs" tests src/tallmc/_api

test-slow: $(STAMP)       ## the checks that `make test` leaves out: long runs, all of contrib, every experiment in its reduced form; goes on where it was interrupted
	$(PYTEST) --timeout=3600 --durations=20 --go-on -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir $(TYPES)

docs: $(STAMP)            ## the documentation site, into site/; runs every example of docstrings, pages and the gallery
	$(PYTEST) --timeout=600 $(SHORT) -m "docs and not slow"
	$(BIN)/python -m website
	$(MKDOCS) build --strict
	$(BIN)/python -m website.crawl site

docs-serve: docs          ## show the site, at http://127.0.0.1:8000
	$(MKDOCS) serve

docs-look: docs           ## screenshots of every page by Chromium, and a check that no code, table or page is cut
	$(BIN)/pip install --quiet playwright
	$(BIN)/python -m website.look

docs-figures: $(STAMP)    ## draw the figures of the theory pages again, in minutes
	$(BIN)/python -m website.figures

dist: $(STAMP)            ## build the wheel, install it into an empty environment, and try it there
	$(BIN)/pip install --quiet build
	rm -rf dist .dist && mkdir .dist
	$(BIN)/python -m build --quiet
	$(PYTHON) -m venv .dist/env
	.dist/env/bin/pip install --quiet dist/*.whl
	cd .dist && env/bin/python ../tests/release/smoke.py

# A part of the suite that needs no extras; it covers every layer.
CORE := tests/test_order.py tests/test_stationary_law.py tests/test_automatic.py tests/test_store.py tests/test_subsampled.py tests/test_ingest.py

test-oldest: $(STAMP)     ## the smallest versions that pyproject.toml allows
	$(PYTHON) -m venv .oldest
	$(BIN)/uv pip install --quiet --python .oldest/bin/python --resolution lowest-direct -e . "pytest>=8" "pytest-xdist>=3" "pytest-timeout>=2.4" "beartype>=0.22"
	.oldest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(CORE)

test-newest: $(STAMP)     ## the newest versions of everything; another interpreter: PYTHON=python3.13 make test-newest
	$(PYTHON) -m venv .newest
	.newest/bin/pip install --quiet --upgrade -e . pytest pytest-xdist pytest-timeout beartype
	.newest/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(CORE)

bench: $(BENCH)           ## speed against the peers, as ratios measured in one run; writes docs/performance.md
	$(BIN)/python -m benchmarks --page

bench-quick: $(BENCH)     ## the most important of it, in minutes
	$(BIN)/python -m benchmarks --quick

trust: $(BENCH)           ## real errors, reported errors and verdicts of every method; writes docs/trust.md, says when it ends, and continues if interrupted
	$(BIN)/python -m benchmarks.trust

clean:
	rm -rf $(VENV) .bench .dist .oldest .newest dist site docs/gallery docs/reference

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(call install,-e ".[dev]")
	touch $@

$(BENCH): $(STAMP)
	$(call install,-e ".[bench]")
	touch $@
