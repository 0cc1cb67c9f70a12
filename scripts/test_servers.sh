#!/usr/bin/env bash
# The suites that need a real server other than vLLM: install the servers that can be installed
# here, run the tests.
# Further arguments go to pytest. ONLY=transformers or ONLY=llamacpp leaves the other one out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only=${ONLY:-llamacpp transformers}

timed() {
    local started_s=$SECONDS
    "$@" || { local status=$?; [[ $status == 3 ]] || exit "$status"; }  # 3: it said what is missing here, and its tests say so too
    echo "$1: $((SECONDS - started_s)) s"
}

[[ " $only " != *" transformers "* ]] || timed scripts/transformers_env.sh
[[ " $only " != *" llamacpp "* ]] || timed scripts/llama_server.sh

# The first Python that can makes the model, once. Another Python would train another tokenizer, and
# so make another model.
if [[ ! -f .cache/tiny-model/config.json ]]; then
    for venv in "${BATCHCLIENT_TRANSFORMERS_VENV:-.transformers}" "${BATCHCLIENT_VLLM_VENV:-.vllm}"; do
        [[ ! -f $venv/complete ]] || { HF_HUB_OFFLINE=1 "$venv/bin/python" scripts/make_tiny_model.py .cache/tiny-model; break; }
    done
fi
llama=${BATCHCLIENT_LLAMA_DIR:-.cache/llama}
if [[ -x $llama/llama-server && -f .cache/tiny-model/config.json ]]; then
    "$llama/tools/bin/python" scripts/make_tiny_gguf.py .cache/tiny-model .cache/tiny.gguf
fi

# -m pytest, not pytest: -m puts the repository root on sys.path, and the conftests import
# tests.live.
marks=${only// / or }
BATCHCLIENT_TEST_SERVERS=1 exec .venv/bin/python -m pytest tests/live tests/contract -m "$marks" "$@"
