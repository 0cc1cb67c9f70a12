#!/usr/bin/env bash
# LangChain, instructor, LiteLLM, pydantic-ai, DSPy, FastAPI, Celery, taskiq and three tracers with this package,
# into .integrations/ (or $BATCHCLIENT_INTEGRATIONS_VENV): 450 MB, two minutes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "$root/scripts/locked_env.sh" "${BATCHCLIENT_INTEGRATIONS_VENV:-$root/.integrations}" "$root/requirements/integrations.lock"
