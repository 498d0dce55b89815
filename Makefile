# Two commands: `make tune` runs the Mixtral study from a fresh clone, `make test` checks everything.
PYTHON ?= python3
STUDY ?= mixtral_8x22b_mi355x
BIN := .venv/bin
# Python compiles a module when it is first imported; most of what is installed never is.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# Commands start Python hundreds of times: without its cache each compiles PyTorch's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: tune test lint install install-everything clean

tune: .venv/.installed
	$(BIN)/foretune tune $(STUDY)

test: lint
	$(BIN)/pytest -n 2 --dist loadgroup

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: .venv/.installed-dev

# PyTorch for the profiler, trainer and toolbox; a driver of PostgreSQL; what asks an LLM.
install-everything: .venv/.installed-dev
	$(PIP) -e '.[torch,toolbox,postgres,llm]'

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
