# Everything a developer does with this repository; `make help` lists it. Needs Python with venv, git and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# More than cores: the end-to-end tests mostly wait for a cluster to converge.
JOBS ?= 3
# Pythons that compile bytecode for the archive, where they are here; on any other version it compiles at each start.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14 $(wildcard $(HOME)/.pyenv/versions/*/bin/python3)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/stamp
ARCHIVE := dist/kubectl-gpu_transition
SOURCES := $(shell find kubectl_gpu_transition -name '.?*' -prune -o -name '*.py' -print -o -name '*.json' -print)
PACKAGING := .ci/build_zipapp.py .ci/zipapp_main.py .ci/requirements.lock krew-manifest.yaml LICENSE

RUFF := --line-length 140 --target-version py310
RULES := --select ARG,B,C4,E,F,I,PIE,PT,RET,RUF,SIM,UP,W --ignore PT018,RET503,RUF001,RUF002,RUF003
# The start of the archive has to be read by every Python since 2.7.
RULES += --per-file-ignores .ci/zipapp_main.py:E402 --per-file-ignores .ci/zipapp_main.py:UP
# A test names the fixtures that it needs to be there.
RULES += --per-file-ignores 'tests/*:ARG'

# Locked although newer versions would do: those need Python 3.11, or bring a tree of data files that nothing reads.
PINS := jsonpatch==1.33 python-dateutil==2.9.0.post0
UV := build/lock/bin/uv
COMPILE := $(UV) pip compile --quiet --upgrade --universal --python-version 3.10 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
.PHONY: help test unit dist demo readme lint format typecheck lock clean

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# The tests run the kubectl of the environment.
test demo readme: export PATH := $(CURDIR)/$(BIN):$(PATH)

test: unit $(ARCHIVE) ## everything: unit tests, then adapters, command line, archive and end to end (KUBEBUILDER_ASSETS: on a real control plane too)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --ignore tests/core --ignore tests/engine

unit: $(STAMP) ## the tests of the core and the engine, in seconds
	$(BIN)/python -m pytest -n $(JOBS) tests/core tests/engine

dist: $(ARCHIVE) ## build dist/: the executable, the archive for krew and its manifest
	@cat $(ARCHIVE).tar.gz.sha256

$(ARCHIVE): $(STAMP) $(SOURCES) $(PACKAGING)
	$(BIN)/python .ci/build_zipapp.py $(addprefix --python ,$(PYTHONS))

demo: $(ARCHIVE) ## watch one whole transition on a simulated cluster
	$(BIN)/python -m tests.demo

readme: $(ARCHIVE) ## write the worked run of README.md anew from a real one
	$(BIN)/python -m tests.readme

lint: $(STAMP) ## look for mistakes and for other than the agreed layout
	$(BIN)/ruff check $(RUFF) $(RULES) .
	$(BIN)/ruff format $(RUFF) --check .

format: $(STAMP) ## bring every file into the agreed layout
	$(BIN)/ruff check $(RUFF) --select I --fix .
	$(BIN)/ruff format $(RUFF) .

typecheck: $(STAMP) ## check the types
	$(BIN)/mypy

lock: ## choose the newest dependencies that setup.cfg allows, and write their versions and hashes to .ci/
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --upgrade uv
	printf '%s\n' $(PINS) | $(COMPILE) --constraint - --output-file .ci/requirements.lock setup.cfg
	$(COMPILE) --constraint .ci/requirements.lock --extra dev --output-file .ci/requirements-dev.lock setup.cfg

$(STAMP): .ci/requirements-dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --requirement $<
	@touch $@

clean: ## remove everything that was built, the environment too
	rm -rf build dist $(VENV) *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
