# Two commands: `make tune` runs the Mixtral study from a fresh clone, `make test` checks everything.
PYTHON ?= python3
STUDY ?= mixtral_8x22b_mi355x
BIN := .venv/bin

.PHONY: tune test lint install clean

tune: .venv/.installed
	$(BIN)/foretune tune $(STUDY)

test: lint
	$(BIN)/pytest -n 2

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: .venv/.installed-dev

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
