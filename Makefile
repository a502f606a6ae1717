# The only entry point people need.  Everything runs in .venv, which is made when it is missing.
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV   ?= .venv
BIN     = $(VENV)/bin
PYTEST  = $(BIN)/python -m pytest
# Which backends the contract suite runs on: BACKENDS=jsonl make test
export BACKENDS ?= memory,jsonl

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-all crash crash-enum crash-kill crash-power crash-faults fuzz fixtures-check coverage bench fmt lint type wheel-check check clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 18

# One stamp per extra: the demo needs no test tools, the tests need no type checkers.
$(BIN)/.extra-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

install: $(BIN)/.extra-dev  ## make .venv with everything in it

demo: $(BIN)/.extra-cli  ## watch an agent be killed in the middle of a turn and go on
	$(BIN)/python examples/demo.py

test: $(BIN)/.extra-test  ## the tests that run in a minute or two
	$(PYTEST) -m "not slow"

test-slow: $(BIN)/.extra-test  ## the tests that take longer
	$(PYTEST) --timeout=600 -m "$(or $(SLOW),slow)"

test-all: $(BIN)/.extra-test  ## all tests, with more examples for the properties
	HYPOTHESIS_PROFILE=ci $(PYTEST) --timeout=600

crash: crash-enum  ## all that crashes something
	HYPOTHESIS_PROFILE=ci $(PYTEST) --timeout=600 -m crash

crash-enum: $(BIN)/.extra-test  ## open more than 100,000 images that a power cut could leave (a quarter of an hour on two idle cores)
	$(BIN)/python -m tests.crash.run_enumeration --images 100000

crash-kill: $(BIN)/.extra-test  ## kill a thousand agents, at least twenty in every class of moments
	$(BIN)/python -m tests.crash.killing

crash-power: $(BIN)/.extra-test  ## cut the power of real file systems two hundred times (root, xfsprogs)
	$(BIN)/python -m tests.crash.power

crash-faults: $(BIN)/.extra-test  ## failing disks, rival writers, every way to end, hostile roots; 10,000 races
	$(PYTEST) --timeout=600 $(addprefix tests/crash/test_,disk_faults.py writers.py exit.py cancellation.py security.py)
	$(BIN)/python -m tests.crash.racing

fuzz: $(BIN)/.extra-test  ## a million damaged logs through scan, salvage and resume; FUZZ="--seconds 60"
	$(BIN)/python -m tests.fuzz --jobs 2 $(FUZZ)

fixtures-check: $(BIN)/.extra-test  ## the fixtures say what expect.json says, and git sees no changed byte
	$(PYTEST) tests/recovery -k fixture
	git diff --exit-code --stat -- fixtures

coverage: $(BIN)/.extra-test  ## statement and branch coverage of the test run
	$(BIN)/python -m coverage run -m pytest && $(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report

bench: $(BIN)/.extra-test  ## the benchmarks as a table; BENCH="--quick", BENCH="--peer DIR" (docs/performance.md)
	$(BIN)/python -m benchmarks $(BENCH)

fmt: install  ## format and fix what can be fixed
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: install  ## ruff: rules and format
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: install  ## mypy --strict and pyright, on the source and on the tests
	$(BIN)/mypy && $(BIN)/pyright

wheel-check: $(BIN)/.extra-test  ## build the wheel and use it from an empty environment in another folder
	$(BIN)/python tests/wheel_check.py

check: lint type test  ## what a change has to pass

clean:  ## remove what was made here, .venv too
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
