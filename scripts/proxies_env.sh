#!/usr/bin/env bash
# LiteLLM's proxy with this package, into .proxies/ (or $BATCHCLIENT_PROXIES_VENV): 800 MB, a
# minute.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/scripts/locked_env.sh" "${BATCHCLIENT_PROXIES_VENV:-$root/.proxies}" "$root/requirements/proxies.lock"
