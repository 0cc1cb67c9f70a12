# Python, make and a package index are all this needs. PYTHON chooses the interpreter (3.11 to 3.14).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# It finds packages by the python that stands first in PATH, and needs no word about newer versions.
PYRIGHT = PATH="$(CURDIR)/$(BIN):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
# Tests that need no server of others, in three processes; N=0: in one, for a debugger.
PYTEST = $(BIN)/python -m pytest -n $(or $(N),3) --dist worksteal --durations=10
# The commit since which changed areas have all their promises broken: by default the last of the day before.
CI_BASE ?= $(shell git rev-list -1 --before=yesterday HEAD 2>/dev/null)
ALONE = not vllm and not llamacpp and not transformers and not gpu and not redis

.PHONY: help setup test long format lint pages docs live gpu test-extra bench release-check clean

help:  ## Say what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
		{ echo "batchclient needs Python 3.11 to 3.14; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP)  ## Make the virtual environment

test: lint  ## What needs no server of others: about five minutes on two shared cores
	$(PYTEST) -m "$(ALONE) and not long" $(PYTEST_ARGS)

long: $(STAMP)  ## What finds rarer faults: studies, simulated faults, damaged replies, broken promises, a soak; SLOW=1: every kill, SECONDS=600: of soak
	$(PYTEST) -m "$(ALONE) and long" tests benchmarks/lab $(PYTEST_ARGS)
	$(BIN)/python benchmarks/lab/pilot.py --jobs 400
	first=$$((100000 + 200 * $(or $(SEED),$(shell date +%-j)))); \
		$(BIN)/python -m benchmarks.lab.harm --seeds $$first $$((first + 199))
	$(BIN)/python -m tests.simulation --seeds 1000
	$(BIN)/python -m tests.storm --seeds 300 --processes 10
	$(BIN)/python -m tests.mutations --seeds 1000
	$(BIN)/python -m tests.promises --run --since "$(CI_BASE)" --minutes 10 --processes 2 --seed $(or $(SEED),$(shell date +%-j))
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),180) --cancellations 10000
	$(if $(SLOW),SLOW=1 $(BIN)/python -m pytest tests/crashes tests/redis/test_kills.py)

format: $(STAMP)  ## Format the code, and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMP)  ## Format, lint, width of prose, types, layers of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/prose.py
	$(BIN)/mypy
	$(PYRIGHT)
	$(PYRIGHT) --verifytypes batchclient --ignoreexternal
	$(BIN)/lint-imports --no-logo

pages: $(STAMP)  ## Draw the docs' tables anew, and run the blocks of all pages
	$(BIN)/python scripts/tables.py --write
	$(BIN)/python benchmarks/report.py
	$(PYTEST) tests/test_docs.py $(PYTEST_ARGS)

docs: $(STAMP)  ## The site, as build/site/index.html; a warning is an error
	PYTHON=$(PYTHON) $(PYTHON) scripts/environments.py docs
	$(or $(BATCHCLIENT_DOCS_VENV),.docs)/bin/sphinx-build -q -E -W --keep-going -b html docs build/site

live: $(STAMP)  ## The live suites against a real vLLM on this machine's CPU (installs it: 3.4 GB)
	PYTHON=$(PYTHON) scripts/test_extra.sh vllm $(PYTEST_ARGS)

gpu: $(STAMP)  ## The suite for a GPU machine, or for servers in BATCHCLIENT_VLLM_URL, …; see tests/README.md
	$(BIN)/python -m pytest tests/gpu -m gpu $(PYTEST_ARGS)

test-extra: $(STAMP)  ## Tests with others' packages or servers: WHICH=integrations, openai2, openai-own, proxies, ray, redis, servers or vllm
	PYTHON=$(PYTHON) scripts/test_extra.sh "$(WHICH)" $(PYTEST_ARGS)

bench: $(STAMP)  ## All figures that need no server of others, into docs/guide/figures.md: hours
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py --page drop_in
	$(BIN)/python benchmarks/bulk.py --arms stream --name million
	$(BIN)/python benchmarks/bulk.py --check
	$(BIN)/python benchmarks/lab/length_grouping.py
	$(BIN)/python benchmarks/lab/strategies.py
	$(BIN)/python benchmarks/batch_files.py --engine-rows 0 --name batch_files
	$(BIN)/python benchmarks/odd_servers.py --runs 2 --calls 600 --name odd_servers
	$(BIN)/python benchmarks/odd_servers.py --rows model,own,rest,serial,bucket,dead,restart,away,absent,events --runs 3
	$(BIN)/python benchmarks/report.py

release-check:  ## A release without the upload, in about 3 minutes: archives, contents, an environment per extra; VERSION=0.1.0 for one that is ready
	PYTHON=$(PYTHON) scripts/release_check.sh $(VERSION)

clean:  ## Take away what was built here
	rm -rf $(VENV) .docs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
