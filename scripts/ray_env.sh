#!/usr/bin/env bash
# Ray Data with this package, into .ray/ (or $BATCHCLIENT_RAY_VENV): 650 MB, a minute.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/scripts/locked_env.sh" "${BATCHCLIENT_RAY_VENV:-$root/.ray}" "$root/requirements/ray.lock"
