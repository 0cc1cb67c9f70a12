#!/usr/bin/env bash
# Tests that need other people's packages or servers: scripts/test_extra.sh WHICH [PYTEST_ARGS]
# It makes what they need (environments.py), and runs them. PYTHON names the interpreter, 3.11 to 3.14.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
which=${1:-}
shift || true
export PYTHON=${PYTHON:-python3.11}

get() {
    "$PYTHON" scripts/environments.py "$@" || test $? = 3  # 3: it said what is missing here, and its tests say so too
}
# -m pytest, not pytest: it puts the repository root on sys.path, where tests and conftests import from.
here() { exec .venv/bin/python -m pytest "$@"; }
model() { HF_HUB_OFFLINE=1 "$2/bin/python" "scripts/make_$1_model.py" ".cache/$1-model"; }  # tiny or thinking

case $which in
    integrations)
        get integrations
        exec "${BATCHCLIENT_INTEGRATIONS_VENV:-.integrations}/bin/python" -m pytest tests/integrations "$@" ;;
    openai2)
        get openai2
        exec "${BATCHCLIENT_OPENAI2_VENV:-.openai2}/bin/python" -m pytest tests/drop_in tests/integrations/openai "$@" ;;
    proxies)
        get proxies nginx
        exec "${BATCHCLIENT_PROXIES_VENV:-.proxies}/bin/python" -m pytest tests/proxies "$@" ;;
    ray)
        get ray
        exec "${BATCHCLIENT_RAY_VENV:-.ray}/bin/python" -m pytest tests/ray "$@" ;;
    redis)
        get redis
        here tests/redis -m redis "$@" ;;
    vllm)
        get vllm prometheus
        venv=${BATCHCLIENT_VLLM_VENV:-.vllm}
        model tiny "$venv"
        model thinking "$venv"
        HF_HUB_OFFLINE=1 "$venv/bin/python" scripts/make_tiny_classifier.py .cache/tiny-model .cache/tiny-classifier
        BATCHCLIENT_TEST_VLLM=1 here tests/live tests/contract -m vllm "$@" ;;
    servers)  # ONLY=transformers or ONLY=llamacpp leaves the other one out
        only=${ONLY:-llamacpp transformers}
        [[ $only != *transformers* ]] || get transformers
        [[ $only != *llamacpp* ]] || scripts/llama_server.sh || test $? = 3
        llama=${BATCHCLIENT_LLAMA_DIR:-.cache/llama}
        for name in tiny thinking; do
            # The first Python that can makes the model, once: another one would train another tokenizer.
            for venv in "${BATCHCLIENT_TRANSFORMERS_VENV:-.transformers}" "${BATCHCLIENT_VLLM_VENV:-.vllm}"; do
                [[ -f .cache/$name-model/config.json || ! -f $venv/complete ]] || model "$name" "$venv"
            done
            if [[ -x $llama/llama-server && -f .cache/$name-model/config.json ]]; then
                "$llama/tools/bin/python" scripts/make_tiny_gguf.py ".cache/$name-model" ".cache/$name.gguf"
            fi
        done
        BATCHCLIENT_TEST_SERVERS=1 here tests/live tests/contract -m "${only// / or }" "$@" ;;
    openai-own)  # openai-python's own tests with the drop-in's classes; OPENAIS_OWN_CLASSES=1: with openai's
        # tests/openai_own/differ.txt lists the tests whose results differ. Left out are calls that go through openai's
        # own code, clouds' classes, and tests that need their packages.
        get openai_own
        python=$root/.openai-own/bin/python
        [[ -z ${BATCHCLIENT_OPENAI_OWN_VENV:-} ]] || python=$BATCHCLIENT_OPENAI_OWN_VENV/bin/python
        version=$(sed -nE 's/^openai==([0-9.]+).*/\1/p' requirements/openai_own.lock)
        folder=.cache/openai-$version
        if [[ ! -d $folder ]]; then
            made=$(mktemp -d .cache/openai-own.XXXXXX)
            trap 'rm -rf "$made"' EXIT
            # The lock's hashes hold for the source archive, too.
            sed -n '/^openai==/,/^ *# via/p' requirements/openai_own.lock >"$made/wanted.txt"
            "$python" -m pip download --disable-pip-version-check --quiet --no-deps --no-binary :all: \
                --no-build-isolation --require-hashes --dest "$made" --requirement "$made/wanted.txt"
            tar -xzf "$made/openai-$version.tar.gz" -C "$made"
            rm -rf "$made/openai-$version/src"  # the installed package is what is tested
            mv "$made/openai-$version" "$folder"
        fi
        cd "$folder"
        PYTHONPATH=$root/tests/openai_own:$root/tests/fakes "$python" -m pytest -o addopts= -p drop_in -p no:batchclient \
            --inline-snapshot=disable --tb=short -q "$@" \
            tests/api_resources/chat tests/api_resources/test_completions.py tests/api_resources/test_embeddings.py \
            tests/lib/chat tests/lib/test_embeddings.py tests/lib/test_embedding_request_context.py \
            tests/test_client.py tests/test_response.py tests/test_legacy_response.py tests/test_stream_mode.py \
            tests/test_status_error_messages.py tests/test_retry_after_overflow.py ;;
    *)
        echo "make test-extra WHICH=…: integrations, openai2, openai-own, proxies, ray, redis, servers or vllm" >&2
        exit 2 ;;
esac
