# Tokenwire's commands. Each does all the set-up it needs (scripts/setup.sh) and is quick when that is done.
#
#   make serve [MODEL=...] [PORT=...] [ARGS="..."]   start the server; MODEL is an alias, a folder or a hub id
#   make test                                        every test; make test-unit: the quick ones
#   make lint types                                  ruff; mypy --strict, and tsc on the page's JSDoc types
#   make chaos [SEED=] [MINUTES=]                    kill, stop and cut things for so long; says whether every promise held
#   make interop [ARGS="--only codex"]               clients of others, each in its own environment; prints a table
#   make audit                                       what is installed, against PyPI's list of known faults
#   make bench [QUICK=1]                             measure it beside what people would use instead; under 15 minutes
#   make simulate [SEED=]                            admission beside first come first served; a thousand models on a few devices
#   make clean                                       remove what was made here (not the model cache)

MODEL ?=
PORT ?=
ARGS ?=
PYTEST_ARGS ?=
SEED ?=
MINUTES ?= 5
QUICK ?=

PY := .venv/bin/python
CHECKED := protocol server tests examples

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-bench serve test test-unit lint types chaos interop bench simulate audit clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@scripts/setup.sh serve

setup-dev:
	@scripts/setup.sh dev

setup-bench:
	@scripts/setup.sh bench

serve: setup
	@exec .venv/bin/tokenwire serve $(if $(MODEL),--model "$(MODEL)") $(if $(PORT),--port "$(PORT)") $(ARGS)

# One pytest run, one summary line. Three workers: most tests wait for other processes most of the time, and two use one
# core of two. tests/conftest.py says what stays together, and what begins first.
test: setup-dev
	@$(PY) -m pytest tests/unit $(wildcard tests/integration tests/e2e tests/interop tests/chaos) -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-unit: setup-dev
	@$(PY) -m pytest tests/unit $(PYTEST_ARGS)

lint: setup-dev
	@$(PY) -m ruff check $(CHECKED)
	@$(PY) -m ruff format --check $(CHECKED)

types: setup-dev
	@$(PY) -m mypy protocol server tests
	@PATH="$$PATH:$$PWD/.venv/bin" node .tools/node_modules/typescript/bin/tsc --project tests/unit/web/tsconfig.json

chaos: setup-dev
	@$(PY) -m tests.chaos $(if $(SEED),--seed "$(SEED)") --minutes "$(MINUTES)" $(ARGS)

interop: setup-dev
	@$(PY) -m tests.interop $(ARGS)

bench: setup-bench
	@$(PY) -m tests.benchmarks.run $(if $(QUICK),--quick) $(ARGS)

simulate: setup-dev
	@$(PY) -m tests.benchmarks.simulate_admission $(if $(SEED),--seed "$(SEED)")
	@$(PY) -m tests.benchmarks.simulate_models $(if $(SEED),--seed "$(SEED)")

audit: setup-dev
	@scripts/audit.sh

clean:
	rm -rf .venv .venv.lock .tools build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
