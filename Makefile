# Two commands for everybody: `make demo` and `make test`. Python 3.10+ and pip are all they need.
VENV ?= .venv
TEST_VENV ?= .venv-test
BENCH_VENV = benchmarks/.work/this
# A pip constraints file, as .ci/oldest.txt; empty: the newest of everything.
CONSTRAINTS ?=
# What the tests that attach to a job need; an installed torch is used as it is.
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
BENCH_ARGS ?=

RECORDINGS = examples/recordings
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
SOURCES := $(shell find diagnose dashboard -type f ! -name '*.pyc')
# What has to run where Python is older than the package's own minimum.
RUNS_ON_3_9 = diagnose/__init__.py $(wildcard diagnose/agent)

export MAKE_GOAL = $(firstword $(MAKECMDGOALS))
.PHONY: help demo test gpu-test lint bench
.DELETE_ON_ERROR:

help:
	@echo "make demo        install into $(VENV) and print the reports of two recordings"
	@echo "make test        install into $(TEST_VENV) and run the tests"
	@echo "make gpu-test    the tests that need a GPU, on the Python given by PYTHON"
	@echo "make lint        style, types and layers"
	@echo "make bench       speed and memory, side by side with HolisticTraceAnalysis"

# Demo and benchmark install the package as a user gets it, not the working tree.
$(VENV)/installed $(BENCH_VENV)/installed: pyproject.toml README.md $(SOURCES)
	@.ci/make-venv $(@D)
	@echo "installing torch-diagnose into $(@D) ..."
	@$(@D)/bin/python $(PIP_INSTALL) .
	@touch $@

$(TEST_VENV)/installed: pyproject.toml $(CONSTRAINTS)
	@.ci/make-venv $(TEST_VENV)
	@echo "installing torch-diagnose and its test tools into $(TEST_VENV) ..."
	@$(TEST_VENV)/bin/python $(PIP_INSTALL) -e '.[dev]'
	@$(TEST_VENV)/bin/python -c 'import torch' 2>/dev/null || \
		{ echo "installing $(TORCH) ..."; $(TEST_VENV)/bin/python $(PIP_INSTALL) '$(TORCH)'; }
	@touch $@

demo: $(VENV)/installed
	@$(VENV)/bin/diagnose report $(RECORDINGS)/healthy
	@echo
	@$(VENV)/bin/diagnose report $(RECORDINGS)/straggler

test: $(TEST_VENV)/installed
	@$(TEST_VENV)/bin/python -m pytest --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

# On a machine with a GPU and torch: uses the Python it is given, installs nothing.
gpu-test:
	@$(or $(PYTHON),python3) -m pytest -m gpu --no-header -rA $(PYTEST_ARGS) tests/gpu

lint: $(TEST_VENV)/installed
	@$(TEST_VENV)/bin/ruff check .
	@$(TEST_VENV)/bin/ruff format --check .
	@$(TEST_VENV)/bin/mypy
	@$(TEST_VENV)/bin/lint-imports
	@$(TEST_VENV)/bin/vermin --target=3.9- --violations --no-tips --quiet $(RUNS_ON_3_9)

bench: $(BENCH_VENV)/installed
	@$(BENCH_VENV)/bin/python -m benchmarks $(BENCH_ARGS)
