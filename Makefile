# Every command a developer needs. `make help` lists them; each one sets up what it lacks.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.nerve-ready
CODE := protocol common brain hands deploy tests docs examples
FIND_PYTHON = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## make .venv with everything that development needs

$(READY): pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
	  for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	    if "$$python" -c '$(FIND_PYTHON)' 2>/dev/null; then found="$$python"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "nerve needs Python 3.11 or newer with the venv module: install it, then run make again" >&2; exit 1; \
	  fi; \
	  "$$found" -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.PHONY: lint
lint: setup ## ruff (rules and format) and the walls between the rooms
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/lint-imports

.PHONY: types
types: setup ## mypy and pyright, both strict
	$(BIN)/mypy
	@command -v node >/dev/null || $(BIN)/python -m pip install --quiet 'pyright[nodejs]'
	$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: layout
layout: setup ## the shape of the house: folders, sizes, exports
	$(BIN)/pytest -q -p no:cacheprovider tests/test_layout.py tests/test_exports.py

.PHONY: test
test: lint types layout ## everything that must pass before a commit lands
	$(BIN)/pytest -n $(JOBS)

.PHONY: sabotage
sabotage: setup ## break each law on purpose; fails where the tests marked for it still pass
	$(BIN)/python tests/sabotage/run.py $(ARGS)

.PHONY: chaos
chaos: setup ## kill at every point and KILLS times at random, with a report in build/chaos
	PYTHONPATH=tests $(BIN)/python -m chaos.run --kills $(KILLS) $(ARGS)

.PHONY: storms
storms: setup ## every fault of RabbitMQ and PostgreSQL, and kills over both; half an hour
	NERVE_REQUIRE=$${NERVE_REQUIRE:-postgres,rabbitmq} $(BIN)/pytest -m storm tests/chaos

.PHONY: bench
bench: setup ## ratios against peers and limits, in one run (ARGS=--servers on real servers, --scale, --quick)
	$(BIN)/python tests/bench/run.py $(ARGS)

.PHONY: images
images: ## build both images, and stand-ins of all others where no registry answers (needs an engine)
	deploy/containers/images $(ARGS)

.PHONY: integration
integration: setup ## ports, kills and faults on servers in containers of this run; nothing else, none skipped
	PYTHONPATH=tests $(BIN)/python -m integration.run $(ARGS)

.PHONY: bench-hands
bench-hands: setup ## Hands alone on real servers beside the broker's own rate, and their memory under large commands
	PYTHONPATH=tests $(BIN)/python -m bench.hands_alone $(ARGS)

.PHONY: capabilities
capabilities: setup ## each promise with the tests that show it, from the last test run
	@PYTHONPATH=tests $(BIN)/python -m support.capabilities capability

.PHONY: reports
reports: setup ## the same for what users of other systems reported
	@PYTHONPATH=tests $(BIN)/python -m support.capabilities report

.PHONY: rules
rules: setup ## the same for the failures that the design survives
	@PYTHONPATH=tests $(BIN)/python -m support.capabilities rule

.PHONY: schema
schema: setup ## write the JSON schemas again from the models
	$(BIN)/python -m nerve.protocol.schema --write

.PHONY: docs
docs: setup ## write the generated pages again
	$(BIN)/python docs/generate.py

.PHONY: demo
demo: setup ## kill Brain and Hands at the worst moments and prove what happened
	$(BIN)/nerve demo

.PHONY: clean
clean: ## remove what the other commands made, the environment too
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
