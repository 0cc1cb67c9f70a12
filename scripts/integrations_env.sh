#!/usr/bin/env bash
# LangChain, instructor, LiteLLM and OpenTelemetry with this package, into .integrations/ (or $BATCHCLIENT_INTEGRATIONS_VENV): 400 MB, two minutes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/scripts/locked_env.sh" "${BATCHCLIENT_INTEGRATIONS_VENV:-$root/.integrations}" "$root/requirements/integrations.lock"
