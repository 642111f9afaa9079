# Every target sets up its own .venv on a machine that has nothing but Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
RUN := .venv/.installed
DEV := .venv/.installed-dev
TPU := .venv-tpu/.installed

.PHONY: help demo test test-fast test-all test-tpu lint format docs docs-check ops notebooks bench peers clean
.DELETE_ON_ERROR:

help:
	@echo "make demo | test | test-fast | test-all | test-tpu | lint | format | docs | docs-check | ops | notebooks | bench | peers | clean"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "partir needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

$(RUN): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $(RUN) $@

demo: $(RUN)
	$(BIN)/partir demo

# The text tests first: they are the cheapest. pytest's closing line is the last one.
test: $(DEV)
	@if find tests/filecheck -name '*.mlir' | grep -q .; then $(BIN)/lit --quiet tests/filecheck; fi
	$(BIN)/python -m pytest -n 2

# For every change: all but what takes more than a few seconds a test. `pytest -m core`: what needs no JAX, in seconds.
test-fast: $(DEV)
	$(BIN)/python -m pytest -n 2 -m "not slow and not tpu and not gpu"

# With every cell of the matrices that `make test` thins (tests/thinned.py).
test-all: $(DEV)
	PARTIR_TEST_ALL=1 $(MAKE) test

# libtpu makes every plain jax.devices() look for a TPU: it lives in an environment of its own.
$(TPU): pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install -qq --disable-pip-version-check --editable '.[test,tpu,gpu]'
	@touch $@

# The real TPU and GPU compilers on what partir lowers; neither device is needed.
test-tpu: $(TPU)
	.venv-tpu/bin/python -m pytest -m "tpu or gpu"

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What the docs say about the code comes from the code.
docs: $(RUN)
	$(BIN)/python docs/build.py
	$(BIN)/python docs/make_dialect.py

# What is measured about correctness: every op JAX emits, what plain jit gets wrong, where Shardy's shardings differ. Minutes, so
# not part of `docs`.
ops: $(DEV)
	$(BIN)/python docs/make_ops.py
	$(BIN)/python benchmarks/silent_errors.py
	$(BIN)/python benchmarks/against_shardy.py

docs-check: $(RUN)
	$(BIN)/python docs/build.py --check
	$(BIN)/python docs/make_dialect.py --check

# Executed, not rewritten: the notebooks as committed must run from top to bottom.
notebooks: $(DEV)
	@for notebook in notebooks/*.ipynb; do [ -e "$$notebook" ] || continue; \
	  echo "$$notebook"; JAX_PLATFORMS=cpu $(BIN)/jupyter execute "$$notebook" || exit 1; done

# Each benchmark in a process of its own: JAX's caches make a second measurement in one process meaningless.
bench: $(RUN)
	@for script in benchmarks/bench_*.py; do [ -e "$$script" ] || continue; \
	  echo "$$script"; $(BIN)/python "$$script" || exit 1; done

# Against what JAX could do before: the peer gets an environment of its own, for which there must be a Python 3.11. Half an hour.
peers: $(TPU)
	.venv-tpu/bin/python benchmarks/peers/against_auto_sharding.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/filecheck/Output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
