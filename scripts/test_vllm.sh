#!/usr/bin/env bash
# The suites that need a real vLLM: install it, make the models, run the tests.
# Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

started_s=$SECONDS
scripts/vllm_env.sh
echo "vLLM environment: $((SECONDS - started_s)) s"

scripts/prometheus.sh || test $? = 3  # 3: it said what is missing here, and its tests say so too

started_s=$SECONDS
HF_HUB_OFFLINE=1 "${BATCHCLIENT_VLLM_VENV:-.vllm}/bin/python" scripts/make_tiny_model.py .cache/tiny-model
HF_HUB_OFFLINE=1 "${BATCHCLIENT_VLLM_VENV:-.vllm}/bin/python" scripts/make_tiny_classifier.py .cache/tiny-model .cache/tiny-classifier
echo "models: $((SECONDS - started_s)) s"

# -m pytest, not pytest: -m puts the repository root on sys.path, and the conftests import
# tests.live.
BATCHCLIENT_TEST_VLLM=1 exec .venv/bin/python -m pytest tests/live tests/contract -m vllm "$@"
