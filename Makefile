# make demo    see hangwatch find a planted hang
# make check   in three minutes: lint, the weight of the package (RECORD=1 records it), types,
#              unit and property tests
# make test    in ten: the checks, the ratchets, and some sixty real jobs that between them touch
#              everything once (needs a C++ compiler; see tests/packages.sh)
# make test-all  in forty: all real jobs, and a slice of the campaign
# make soak    the real jobs of make test beside two busy processes, N=20 times: who is late
# make precision  how exactly the rank at fault is named in simulated jobs, by kind of fault
# make zoo     real programs with planted faults: what is expected, what hangwatch finds
# make corpus  what hangwatch knew of each of them, recorded anew for make check; WORDS=oom some
# make campaign  all the tests that make test has no time for, and faults injected into real
#                jobs, two hours or three; FAULT=kill-017 one fault, KIND=kill those of a kind,
#                SLICE=60 some of them, other ones each day (DAY=739942 those of that one)
# make instructions  what a call, a sample, a page read and a diagnosis cost, in instructions
# make matrix  each version of torch and Python in turn (docs/compatibility.md), an hour;
#              TORCH=2.6.0 or TORCH=2.14.1/3.13 one of them
# make bench   the figures of docs/figures.md
# make docs    the documentation as a site in build/docs
# Each works from a fresh clone: a virtual environment is made in .venv, and for the tests of
# launchers and frameworks another one in .venv-frameworks.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles what is imported; all of torch, twice, is minutes.
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile -c tests/constraints.txt
PIP := $(BIN)/pip install $(PIP_OPTIONS)
# The launchers and frameworks, apart: they bring much that hangwatch must do without.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_PIP := $(FRAMEWORKS)/bin/pip install $(PIP_OPTIONS) -c tests/frameworks/constraints.txt
# Of the order of the tests.
SEED ?= 1
# Modules are compiled when first imported: pip would compile all of torch, and a process that
# may keep none of it would compile at each import what takes longer than to run it.
unexport PYTHONDONTWRITEBYTECODE
# As many real jobs at a time as there are cores: one that starves answers late, or not at all.
IN_ANY_ORDER := $(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal
PYTEST := $(IN_ANY_ORDER) --randomly-seed=$(SEED)
REAL := tests/integration tests/zoo tests/frameworks tests/gpu_fake
GATE := $(BIN)/python tests/suite/gate.py
N ?= 20
# What the installed package is built from; its Python files are read in place.
BUILD := pyproject.toml CMakeLists.txt tests/constraints.txt $(wildcard native/*)
CPP := $(wildcard native/*.cpp native/*.hpp native/tests/*.cpp native/tests/*.hpp) \
       $(wildcard tests/integration/native/*.cpp tests/gpu_fake/*.cpp tests/newest_torch/*.cpp)

.PHONY: demo check test test-all soak lint weight types unit real quiet everything apart precision \
        instructions slice packages corpus zoo campaign matrix bench docs clean

demo: $(VENV)/installed
	$(BIN)/hangwatch demo

check: $(VENV)/tested
	$(GATE) --minutes 3 check lint weight types unit

test: packages $(VENV)/tested $(FRAMEWORKS)/installed
	$(GATE) --minutes 10 --cpu-minutes 14 test lint weight types+precision+instructions unit real quiet

test-all: packages $(VENV)/tested $(FRAMEWORKS)/installed
	$(GATE) --minutes 40 test-all lint weight types+precision+instructions unit everything apart slice

soak: packages $(VENV)/tested $(FRAMEWORKS)/installed
	$(GATE) --soak $(N) soak real quiet

lint: $(VENV)/tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CPP)

weight: $(VENV)/tested
	$(BIN)/python tests/suite/weight.py $(if $(RECORD),--record)

types: $(VENV)/tested
	$(BIN)/mypy

unit: $(VENV)/tested
	$(PYTEST) -q -m 'not campaign' tests/unit tests/property tests/corpus tests/campaign tests/gpu

# What make test runs of the real jobs (tests/suite/chosen.py), then those that want a quiet machine.
real: $(VENV)/tested $(FRAMEWORKS)/installed
	$(PYTEST) -m 'chosen and not quiet' --durations=12 $(REAL)

quiet: $(VENV)/tested $(FRAMEWORKS)/installed
	$(PYTEST) -n 0 -m 'chosen and quiet' --durations=12 $(REAL)

# All of them, but for those that make campaign runs.
everything: $(VENV)/tested $(FRAMEWORKS)/installed
	$(PYTEST) -m 'not campaign and not quiet' $(REAL)

apart: $(VENV)/tested $(FRAMEWORKS)/installed
	$(PYTEST) -n 0 -m 'not campaign and quiet' $(REAL)

precision: $(VENV)/tested
	$(BIN)/python tests/property/precision.py

instructions: $(VENV)/tested
	$(BIN)/python tests/bench/instructions.py $(if $(RECORD),--record)

# The day, which chooses the faults, is printed: SLICE=16 DAY=... draws them again.
slice: $(VENV)/tested
	$(BIN)/python tests/campaign/run.py --slice 16

packages:
	sh tests/packages.sh

corpus: $(VENV)/tested
	$(BIN)/python tests/corpus/record.py $(WORDS)

zoo: $(VENV)/tested
	$(BIN)/python tests/zoo/table.py

campaign: $(VENV)/tested $(FRAMEWORKS)/installed
	$(if $(FAULT)$(KIND)$(SLICE)$(RESUME),,$(IN_ANY_ORDER) -m campaign --hypothesis-profile=chance -p no:randomly)
	$(BIN)/python tests/campaign/run.py $(if $(FAULT),--fault $(FAULT)) $(if $(KIND),--kind $(KIND)) $(if $(SLICE),--slice $(SLICE)) $(if $(DAY),--day $(DAY)) $(if $(RESUME),--resume)

matrix: $(VENV)/tested
	$(BIN)/python tests/matrix.py $(TORCH)

bench: $(VENV)/tested
	for bench in tests/bench/bench_*.py; do $(BIN)/python $$bench || exit 1; done

docs: $(VENV)/tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# torch first: what else is installed must not choose its version.
$(VENV)/torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hangwatch needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	touch $@

$(VENV)/installed: $(VENV)/torch $(BUILD)
	$(PIP) --editable .
	touch $@

# Not '.[test]', which would build the native module once more.
$(VENV)/tested: $(VENV)/installed
	$(BIN)/python tests/requirements.py | xargs $(PIP)
	touch $@

# Also when its versions have changed: from scratch, so that nothing old stays in it. DeepSpeed
# compiles nothing, neither here nor, by the programs' wish, when it first trains.
$(FRAMEWORKS)/frameworks: tests/frameworks/constraints.txt | $(VENV)/torch
	$(PYTHON) -m venv --clear $(FRAMEWORKS)
	$(FRAMEWORKS_PIP) torch numpy setuptools wheel packaging ninja
	$(FRAMEWORKS_PIP) accelerate lightning transformers
	DS_BUILD_OPS=0 $(FRAMEWORKS_PIP) --no-build-isolation deepspeed
	touch $@

$(FRAMEWORKS)/installed: $(FRAMEWORKS)/frameworks $(BUILD)
	$(FRAMEWORKS_PIP) --editable .
	touch $@
