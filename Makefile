# Two commands: `make app` opens the dashboard, `make test` runs the tests. `make help` lists all.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
PORT ?= 8501
PIP_ARGS ?=
PYTEST_ARGS ?=
RESULTS ?= out/bench

# Every `workbench bench NAME`; those that need environments of their own (tests/peers) come last.
BENCHES := decode model prefix capacity ui quality codecs reuse attention-shapes tiers devices peers quality-peers

# The first Python on the path that is new enough; python3 otherwise, so that preflight can say why not.
PYTHON ?= $(shell for name in python3 python3.11 python3.12 python3.13 python3.14; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo "$$name"; exit; fi; done; echo python3)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := $(VENV)/.constraints.txt
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.PHONY: help app install model test test-long test-transports lint bench notebook clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name text; do
		printf '  make %-15s %s\n' "$$name" "$$text"; done

app: model ## install what is missing, fetch the model, open the dashboard
	@$(BIN)/python workbench/preflight.py start $(PORT)
	exec $(BIN)/streamlit run app --server.port $(PORT) --server.showEmailPrompt false

install: $(VENV)/.installed ## only make the environment and install

model: $(VENV)/.installed ## only fetch the model, or verify it
	@$(BIN)/workbench model fetch

test: $(VENV)/.tests model ## run every test but the long ones
	@$(BIN)/python -m pytest -m 'not long and not browser' -n 2 --dist worksteal $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'not long and browser' $(PYTEST_ARGS)

test-long: $(VENV)/.tests model ## run the long tests, and name those that were skipped
	@$(BIN)/python -m pytest -m long -rs -n 2 --dist worksteal $(PYTEST_ARGS)

test-transports: .venv-transports/.done ## test the optional transports, NIXL and Mooncake, in .venv-transports
	@.venv-transports/bin/python -m pytest -rs tests/spatial/test_disk_transports.py \
		tests/spatial/test_shared_transports.py tests/spatial/test_object_transports.py \
		tests/spatial/test_mooncake_pool.py tests/lab/test_transport_bench.py $(PYTEST_ARGS)

lint: $(VENV)/.tests ## ruff, mypy and the import contracts
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.tests model ## measure every figure of docs/benchmarks.md into out/bench/
	@mkdir -p $(RESULTS)
	for name in $(BENCHES); do
		echo "== workbench bench $$name"
		$(BIN)/workbench bench "$$name" --json > "$(RESULTS)/$$name.json"
		cat "$(RESULTS)/$$name.json"
	done
	echo "== workbench check"
	$(BIN)/workbench check --steps 5000 --json > "$(RESULTS)/check.json"
	cat "$(RESULTS)/check.json"

notebook: $(VENV)/.notebook model ## open the notebooks in JupyterLab
	@exec $(BIN)/jupyter lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

clean: ## remove the environment, caches and results
	rm -rf $(VENV) out build .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	rm -rf *.egg-info kernels/*.egg-info
	find app workbench kernels tests notebooks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || {
		echo "$(PYTHON) is not on this machine: sudo apt install python3 python3-venv," \
			"or name another Python: make app PYTHON=python3.11" >&2
		exit 2
	}
	"$(PYTHON)" workbench/preflight.py install .
	"$(PYTHON)" -m venv $(VENV)
	touch $@

# Torch comes first and by its exact version: an open range may choose gigabytes of CUDA. A CUDA
# build asks for a Triton of its own, so then that pin gives way.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@$(PIP) install $(PIP_ARGS) $(TORCH)
	if $(BIN)/python -c 'import torch, sys; sys.exit(torch.version.cuda is None)'
	then grep -v -e '^triton==' -e '^nvidia-' constraints.txt > $(CONSTRAINTS)
	else cp constraints.txt $(CONSTRAINTS); fi
	$(PIP) install $(PIP_ARGS) --constraint $(CONSTRAINTS) --editable .
	touch $@

$(VENV)/.tests: $(VENV)/.installed
	@$(PIP) install $(PIP_ARGS) --constraint $(CONSTRAINTS) --editable '.[test]'
	touch $@

# NIXL and Mooncake in an environment of their own; Mooncake needs libibverbs1 of the system.
.venv-transports/.done: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory VENV=.venv-transports .venv-transports/.tests
	.venv-transports/bin/python -m pip --disable-pip-version-check install $(PIP_ARGS) \
		--constraint .venv-transports/.constraints.txt --editable '.[test,transports]'
	touch $@

$(VENV)/.notebook: $(VENV)/.installed
	@$(PIP) install $(PIP_ARGS) --constraint $(CONSTRAINTS) --editable '.[notebook]'
	touch $@
