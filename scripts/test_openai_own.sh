#!/usr/bin/env bash
# openai-python's own tests, with the drop-in's classes in the place of openai's:
# scripts/test_openai_own.sh [PYTEST_ARGS]
# The tests come from the source archive of the version in requirements/openai_own.lock, into
# .cache/, and are never committed.
# OPENAIS_OWN_CLASSES=1 runs them with openai's own classes: a failure then is the stand-in's fault,
# or the archive's.
#
# The tests that run touch completions, chats and embeddings. tests/openai_own/differ.txt lists the
# tests whose results differ. Left out:
# - other folders of api_resources, beta, live, realtime, audio, files, …: those calls go through
#   openai's own code, untouched.
# - lib/azure, bedrock, vertex, auth, x509, mtls: classes and signatures that the drop-in does not
#   stand for.
# - tests that import websockets, Pillow, numpy or a cloud's package.
# - test_client.py's tests of retries: their mock counts openai's own loop and its headers. Here
#   retries are batchclient's, with waits of its own; tests/drop_in tests those.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lock=$root/requirements/openai_own.lock
venv=${BATCHCLIENT_OPENAI_OWN_VENV:-$root/.openai-own}
"$root/scripts/locked_env.sh" "$venv" "$lock"

version=$(sed -nE 's/^openai==([0-9.]+).*/\1/p' "$lock")
folder=$root/.cache/openai-$version
if [[ ! -d $folder ]]; then
    mkdir -p "$root/.cache"
    made=$(mktemp -d "$root/.cache/openai-own.XXXXXX")
    trap 'rm -rf "$made"' EXIT
    # The lock's hashes hold for the archive, too.
    sed -n '/^openai==/,/^ *# via/p' "$lock" >"$made/wanted.txt"
    "$venv/bin/python" -m pip download --disable-pip-version-check --quiet --no-deps --no-binary :all: \
        --no-build-isolation --require-hashes --dest "$made" --requirement "$made/wanted.txt"
    tar -xzf "$made/openai-$version.tar.gz" -C "$made"
    # The installed package is what is tested.
    rm -rf "$made/openai-$version/src"
    mv "$made/openai-$version" "$folder"
fi

cd "$folder"
PYTHONPATH=$root/tests/openai_own exec "$venv/bin/python" -m pytest -o addopts= -p drop_in -p no:batchclient \
    --inline-snapshot=disable --tb=short -q "$@" \
    tests/api_resources/chat tests/api_resources/test_completions.py tests/api_resources/test_embeddings.py \
    tests/lib/chat tests/lib/test_embeddings.py tests/lib/test_embedding_request_context.py \
    tests/test_client.py tests/test_response.py tests/test_legacy_response.py tests/test_stream_mode.py \
    tests/test_status_error_messages.py tests/test_retry_after_overflow.py
