# `make demo` and `make test` do everything on a machine with Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt
DATA ?= $(if $(wildcard ../shared/data),$(abspath ../shared/data))
export NOTSODEEP_DATA ?= $(DATA)

.PHONY: demo test test-slow lint layers types pytest clean

demo: $(VENV)/.installed
	@$(BIN)/notsodeep design --activation tanh --var-a 0.2 --data digits --out demo/tanh
	@$(BIN)/notsodeep design --activation relu --var-a 0.2 --data digits --out demo/relu

test: lint layers types pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

pytest: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile  # two workers on two cores: threads of one would wait for the other's

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m slow

.PHONY: docs docs-serve

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

docs-serve: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

.PHONY: release smoke

# Wheel and source archive into build/dist, looked into, and the wheel tried where nothing else is.
release: $(VENV)/.installed-dev
	rm -rf build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist
	$(BIN)/python scripts/check_dist.py build/dist
	$(MAKE) smoke

smoke:
	$(BIN)/python scripts/clean_install.py $(wildcard build/dist/*.whl)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("notsodeep needs Python >= 3.11, found " + sys.version.split()[0] + "; try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
