# Every target makes its own set-up: `.venv` with pinned dependencies.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Trackers' libraries, with pins of their own: theirs and those of constraints.txt need not agree.
TRACKERS       := .venv-trackers
TRACKERS_READY := $(TRACKERS)/.ready

# vLLM's CPU build and the plugin by which it takes weights, with pins of their own: all of them are named, since what
# its own dependencies bring for torchvision is built for CUDA.
VLLM       := .venv-vllm
VLLM_READY := $(VLLM)/.ready

# Ray's dashboard, which serves jobs: a folder of packages, for the test of `headrace submit` alone.
DASHBOARD       := .dashboard
DASHBOARD_READY := $(DASHBOARD)/.ready

# SGLang, with what it needs to start on a CPU, likewise.
SGLANG       := .venv-sglang
SGLANG_READY := $(SGLANG)/.ready

# prime-rl's verifiers, which a test compares with, and which wants an older openai than constraints.txt.
VERIFIERS       := .venv-verifiers
VERIFIERS_READY := $(VERIFIERS)/.ready

.PHONY: quickstart test test-slow test-servers test-apart soak trackers-env verifiers-env vllm-env sglang-env lint bench gpu-check clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,math,plot,schema,datasets,tensorboard,renderers,cluster,megatron]'
	touch $@

quickstart: $(READY)
	$(BIN)/headrace quickstart --dir quickstart --fresh $(ARGS)

# On two quiet cores: 5 minutes at most. Tests are shared out to JOBS processes.
JOBS ?= 2
SHARED := -n $(JOBS) --dist worksteal
test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(SHARED) $(ARGS)

$(TRACKERS_READY): pyproject.toml constraints-trackers.txt
	test -x $(TRACKERS)/bin/python || $(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-trackers.txt torch
	$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-trackers.txt \
		-e '.[tensorboard,wandb,mlflow,trackio]' pytest pytest-timeout
	touch $@

trackers-env: $(TRACKERS_READY)

$(VERIFIERS_READY): pyproject.toml constraints-verifiers.txt
	test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-verifiers.txt torch
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-verifiers.txt \
		-e '.[renderers]' verifiers pytest pytest-timeout
	touch $@

verifiers-env: $(VERIFIERS_READY)

$(DASHBOARD_READY): requirements-dashboard.txt | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade \
		--target $(DASHBOARD) -r requirements-dashboard.txt
	touch $@

$(VLLM_READY): requirements-vllm.txt plugins/headrace-vllm/pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e plugins/headrace-vllm
	touch $@

vllm-env: $(VLLM_READY)

$(SGLANG_READY): requirements-sglang.txt plugins/headrace-sglang-cpu/pyproject.toml
	test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-sglang.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e plugins/headrace-sglang-cpu
	touch $@

sglang-env: $(SGLANG_READY)

# What takes more than a second and a half or so: 45 minutes, of which 3 for the wheel and the sdist in an empty environment.
# Then, at the same time, servers (16: 11 for vLLM, 5 for SGLang) and what else has an environment of its own (8: 4 for the
# trackers, 4 for verifiers). Environments included 65 together, on two quiet cores.
test-slow: $(READY) $(DASHBOARD_READY) $(TRACKERS_READY) $(VLLM_READY) $(SGLANG_READY) $(VERIFIERS_READY)
	$(BIN)/python -m pytest -m slow --ignore tests/servers $(SHARED) $(ARGS)
	$(MAKE) --no-print-directory --output-sync=line --jobs $(JOBS) test-servers test-apart

test-servers: $(READY) $(VLLM_READY) $(SGLANG_READY)
	$(BIN)/python -m pytest -m slow tests/servers $(ARGS)

test-apart: $(READY) $(DASHBOARD_READY) $(TRACKERS_READY) $(VLLM_READY) $(VERIFIERS_READY)
	PYTHONPATH=$(CURDIR)/$(DASHBOARD):$(PYTHONPATH) $(BIN)/python -m pytest -m slow tests/cli/test_submit.py
	$(TRACKERS)/bin/python -m pytest -m slow tests/trackers
	$(VERIFIERS)/bin/python -m pytest tests/oracle/test_verifiers.py tests/oracle/test_verifiers_vllm.py

# 5,000 cases of the fault matrix, and how often each fault took effect: in half an hour on a quiet core. A part of them:
# `make soak SEEDS=500 FIRST=4000`. Then layouts of eight ranks: three minutes. Then a run of which KILLS processes are
# killed at random: two seconds each. Then what is like other slow tests: half an hour.
SEEDS ?= 5000
FIRST ?= 0
KILLS ?= 1000
soak: $(READY) $(VLLM_READY) $(SGLANG_READY)
	$(BIN)/python -m headrace.controller.simulation --seeds $(SEEDS) --first $(FIRST)
	HEADRACE_RANKS=8 $(BIN)/python -m pytest -m slow tests/training/test_layouts.py
	HEADRACE_KILLS=$(KILLS) $(BIN)/python -m pytest -s -m slow tests/controller/test_kills.py
	HEADRACE_SOAK=1 $(BIN)/python -m pytest -m "slow and soak"

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples plugins
	$(BIN)/ruff format --check src tests benchmarks examples plugins
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

# With the interpreter at hand, and its own torch: for a machine with a CUDA device. All tests that compute, on it, then
# the benchmarks, also after a test has failed; their figures are added to benchmarks/results/gpu.json. In parts that
# should take equally long: `make gpu-check PART=1/6 ARGS="-n 12"`, or a part of 12 without. So that a part takes eight
# minutes and the end of what it began last, it begins no test after TESTS_S seconds and no figure after FIGURES_S; what
# is left is told, and the part has failed: then have more. PYTHON needs pytest, pytest-timeout, hypothesis and pyarrow
# besides what Headrace imports, and pytest-xdist for `-n`; docs/gpu.md says how to bring wheels of what it lacks. Whole
# runs, which take longer, are made by name: `python -m benchmarks.gpu --only modes,trl`.
PART ?= 1/1
RUNS ?= 5
TESTS_S ?= 270
FIGURES_S ?= 180
ON_DEVICE := $(addprefix tests/,controller engines exact training weights models/test_norms.py models/test_varlen_attention.py)
gpu-check:
	HEADRACE_TEST_DEVICE=cuda PYTHONPATH=$(CURDIR)/src:$(CURDIR):$(PYTHONPATH) $(PYTHON) -m pytest -p no:cacheprovider --part $(PART) --begin-within $(TESTS_S) $(ON_DEVICE) $(ARGS); \
	tests=$$?; PYTHONPATH=$(CURDIR)/src:$(CURDIR):$(PYTHONPATH) $(PYTHON) -m benchmarks.gpu --part $(PART) --begin-within $(FIGURES_S) --runs $(RUNS) && exit $$tests

clean:
	rm -rf $(VENV) $(DASHBOARD) $(TRACKERS) $(VLLM) $(SGLANG) $(VERIFIERS) quickstart
