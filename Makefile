# Every target makes its own set-up: `.venv` with pinned dependencies.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: quickstart test test-slow lint bench gpu-check clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,math,schema]'
	touch $@

quickstart: $(READY)
	$(BIN)/headrace quickstart --dir quickstart --fresh $(ARGS)

# On two quiet cores: 12 minutes at most.
test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

# What takes more than about ten seconds: 20 minutes at most.
test-slow: $(READY)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# With the interpreter at hand, and its own torch: for a machine with a CUDA device. `make gpu-check PYTHON=python3`
gpu-check:
	PYTHONPATH=src:. $(PYTHON) -m pytest -m gpu -p no:cacheprovider $(ARGS)
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.gpu

clean:
	rm -rf $(VENV) quickstart
