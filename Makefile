# Python, make and the package registries are all this needs. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# It finds packages by the python that stands first in PATH, and needs no word about newer versions.
PYRIGHT = PATH="$(CURDIR)/$(BIN):$$PATH" PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

# Tests that need no server of others.
ALONE = not vllm and not llamacpp and not transformers and not gpu and not redis

.PHONY: help setup demo test lint types layers unit long test-vllm test-servers test-gpu test-openai2 test-openai-own test-integrations test-proxies test-redis test-ray prometheus bench bench-vllm million sim storm mutations promises snapshots soak release-check format clean

help:  ## Say what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "batchclient needs Python 3.11 to 3.13; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(STAMP)  ## Make the virtual environment

demo: $(STAMP)  ## 2,000 texts through batch_map beside AsyncOpenAI + gather; BASE_URL=… MODEL=… for your own server
	@$(BIN)/batchclient demo $(if $(BASE_URL),--base-url $(BASE_URL)) $(if $(MODEL),--model $(MODEL))

test: lint types layers unit  ## What needs no server of others: about five minutes on two shared cores

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/prose.py check

types: $(STAMP)
	$(BIN)/mypy
	$(PYRIGHT)
	$(PYRIGHT) --verifytypes batchclient --ignoreexternal

layers: $(STAMP)
	$(BIN)/lint-imports --no-logo

unit: $(STAMP)
	$(BIN)/python -m pytest -n $(or $(N),3) --dist worksteal -m "$(ALONE) and not long" --durations=10 $(PYTEST_ARGS)

long: $(STAMP)  ## What finds rarer faults: studies, trio everywhere, simulated faults, damaged replies, a sample of broken promises
	$(BIN)/python -m pytest -n $(or $(N),3) --dist worksteal -m "$(ALONE) and long" --durations=10 $(PYTEST_ARGS)
	$(BIN)/python -m tests.simulation --seeds 1000
	$(BIN)/python -m tests.storm --seeds 300 --processes 10
	$(BIN)/python -m tests.mutations --seeds 1000
	$(BIN)/python -m tests.promises --run --sample 25

test-vllm: $(STAMP)  ## The live suites against a real vLLM on this machine's CPU (installs it: 3.4 GB)
	scripts/test_vllm.sh $(PYTEST_ARGS)

test-servers: $(STAMP)  ## The same against a real llama-server (builds it: 5 minutes, once) and transformers serve (1.2 GB)
	scripts/test_servers.sh $(PYTEST_ARGS)

test-gpu: $(STAMP)  ## The suite for a GPU machine, or for servers in BATCHCLIENT_VLLM_URL, …; see docs/how-to/gpu-suite.md
	$(BIN)/python -m pytest tests/gpu -m gpu $(PYTEST_ARGS)

test-openai2:  ## The drop-in and BatchTransport with openai 2, in an environment of its own
	PYTHON=$(PYTHON) scripts/openai2_env.sh
	"$${BATCHCLIENT_OPENAI2_VENV:-.openai2}/bin/python" -m pytest tests/drop_in tests/integrations/openai $(PYTEST_ARGS)

test-openai-own:  ## openai-python's own tests on the drop-in's classes, in an environment of their own
	PYTHON=$(PYTHON) scripts/test_openai_own.sh $(PYTEST_ARGS)

test-integrations:  ## LangChain, instructor, LiteLLM, pydantic-ai, DSPy, FastAPI, Celery, taskiq and three tracers, in an environment of their own (450 MB)
	PYTHON=$(PYTHON) scripts/integrations_env.sh
	"$${BATCHCLIENT_INTEGRATIONS_VENV:-.integrations}/bin/python" -m pytest tests/integrations $(PYTEST_ARGS)

test-proxies:  ## A real LiteLLM proxy and nginx before the embedded server, in an environment of their own (800 MB)
	PYTHON=$(PYTHON) scripts/proxies_env.sh
	scripts/nginx.sh || test $$? = 3  # 3: it said what is missing here, and its tests say so too
	"$${BATCHCLIENT_PROXIES_VENV:-.proxies}/bin/python" -m pytest tests/proxies $(PYTEST_ARGS)

test-redis: $(STAMP)  ## The worker on a real redis-server (fetches Debian's: 5 MB), killed and restarted too
	scripts/redis.sh || test $$? = 3  # 3: it said what is missing here, and its tests say so too
	$(BIN)/python -m pytest tests/redis -m redis $(PYTEST_ARGS)

prometheus:  ## Debian's Prometheus into .cache (90 MB): the tests of queries and alert rules then run in make test
	scripts/prometheus.sh || test $$? = 3  # 3: it said what is missing here, and the tests say so too

test-ray:  ## MapBatches in real Ray Data, in an environment of its own (650 MB)
	PYTHON=$(PYTHON) scripts/ray_env.sh
	"$${BATCHCLIENT_RAY_VENV:-.ray}/bin/python" -m pytest tests/ray $(PYTEST_ARGS)

bench: $(STAMP)  ## Client CPU per call, latency of a lone call, a million documents, threads; into docs/benchmarks.md
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/drop_in.py
	$(BIN)/python benchmarks/million.py
	$(BIN)/python benchmarks/sync.py
	$(BIN)/python benchmarks/strategies.py
	$(BIN)/python benchmarks/report.py

bench-vllm: $(STAMP)  ## Calls/s and latency on a real vLLM, beside AsyncOpenAI; into docs/benchmarks.md
	scripts/vllm_env.sh
	HF_HUB_OFFLINE=1 "$${BATCHCLIENT_VLLM_VENV:-.vllm}/bin/python" scripts/make_tiny_model.py .cache/tiny-model
	$(BIN)/python benchmarks/on_vllm.py
	$(BIN)/python benchmarks/report.py

soak: $(STAMP)  ## Mixed traffic with faults: memory, descriptors and sockets stay flat; SECONDS=600. Then jobs that are killed: 25 minutes
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),600) $(ARGS)
	SLOW=1 $(BIN)/python -m pytest tests/crashes tests/journal/test_kills.py tests/redis/test_kills.py

sim: $(STAMP)  ## Simulated runs under seeded faults, and what met what; SEEDS=10000, or SEED=123 to see one again
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000))

storm: $(STAMP)  ## Cancels, deadlines, closes and user functions that raise, at random; then processes with signals; SEEDS=2000, PROCESSES=50, or SEED=123
	$(BIN)/python -m tests.storm $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000) --processes $(or $(PROCESSES),50))

mutations: $(STAMP)  ## Replies of every server, one thing in each gone wrong on its way; SEEDS=10000, or SEED=123 to see one again
	$(BIN)/python -m tests.mutations $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000))

promises: $(STAMP)  ## Break each promise of tests/promises.tsv in a copy of the tree: the test that it names must fail
	scripts/redis.sh || test $$? = 3
	$(BIN)/python -m tests.promises --run $(ARGS)

snapshots: $(STAMP)  ## Say where commands, bytes on the wire or the public surface differ from the committed hashes; ARGS=--write
	$(BIN)/python -m tests.snapshots $(ARGS)

release-check:  ## A release without the upload, in about 3 minutes: archives, contents, an environment per extra; VERSION=0.1.0 for one that is ready
	PYTHON=$(PYTHON) scripts/release_check.sh $(VERSION)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
