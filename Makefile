# Two commands matter: `make serve` and `make test`. Both set everything up first; the second time
# that takes a second. Settings for serve come from FAIRGATE_* variables and .env.
#
#   make serve ARGS="Qwen/Qwen3-0.6B --max-num-seqs 64"    another model, flags of `vllm serve`
#   make test ARGS="-k drain"                              some of the tests
#   make install PYTHON=python3.12 DEVICE=cpu              another Python, not what the machine has

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first Python that fits; 3.11 is the one that is tested.
FITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(or $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c '$(FITS)' >/dev/null 2>&1 && echo $$p && break; done),python3)
DEVICE ?=
ARGS ?=

VENV := .venv/bin/python

# The embedded model is needed unless ARGS begins with another one or names it by --model.
MODEL = $(if $(filter --model --model=%,$(ARGS))$(filter-out -%,$(firstword $(ARGS))),,model)

.PHONY: help
help:
	@sed -n 's/^## //p' Makefile

## make install      set up .venv
.PHONY: install
install:
	@$(PYTHON) install.py $(if $(DEVICE),--device $(DEVICE))

## make model        prepare the embedded model
.PHONY: model
model: install
	@$(VENV) -m app model

## make serve        set up and serve; ARGS as for `python -m app serve`
.PHONY: serve
serve: install $(MODEL)
	@exec $(VENV) -m app serve $(ARGS)

## make test         set up and run every test; says which are skipped and why
.PHONY: test
test: install model
	@$(VENV) -m pytest $(ARGS)

## make lint         check style and format
.PHONY: lint
lint: install
	@$(VENV) -m ruff check
	@$(VENV) -m ruff format --check

## make format       put the format right
.PHONY: format
format: install
	@$(VENV) -m ruff check --fix
	@$(VENV) -m ruff format

## make types        check the types
.PHONY: types
types: install
	@$(VENV) -m mypy

## make bench        measure what admission costs, in decisions and in tokens
.PHONY: bench
bench: install
	@$(VENV) -m tests.admission.bench_ledger
	@$(VENV) -m tests.bench_seam $(ARGS)

## make constraints  move constraints.txt to the newest versions that fit together
.PHONY: constraints
constraints:
	@$(PYTHON) install.py --constraints
