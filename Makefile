.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: help setup demo test lint bench soak clean

help:
	@echo "make setup  create .venv with everything"
	@echo "make demo   build a small model, run it, compare it with eager"
	@echo "make test   linters, types, tests"
	@echo "make bench  measure against stock PyTorch (minutes)"
	@echo "make soak   kills and fuzzing, longer; writes docs/evidence/"

setup: $(STAMP)

# torch first and by exact version: a bare `torch` takes the CUDA build, gigabytes that nothing here uses.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e '.[dev,examples]'
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak"

bench: setup
	$(BIN)/python -m bench

soak: setup
	$(BIN)/python -m pytest -m soak -n 0

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
