#!/usr/bin/env bash
# The last openai of major 2 with this package, into .openai2/ (or $BATCHCLIENT_OPENAI2_VENV): half
# a minute.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/scripts/locked_env.sh" "${BATCHCLIENT_OPENAI2_VENV:-$root/.openai2}" "$root/requirements/openai2.lock"
