"""LiteLLM's proxy as a process: no database, no telemetry, nothing from the network.

Its models are those of a vLLM (`hosted_vllm/`, the usual provider for one), of `openai/` and `text-completion-openai/`, one whose upstream is
dead, and one whose upstream calls tools. Keys: the master key; one that may send 3 requests per window; one that is revoked (401); for all others LiteLLM misses its database (400).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.live.server_process import HOST, NotInstalled, ServerProcess

MASTER_KEY = "sk-master-0000"
LIMITED_KEY = "sk-limited-0000"
LIMITED_REQUESTS = 3
REVOKED_KEY = "sk-revoked-0000"
WINDOW_S = 2
DEAD_UPSTREAM = "http://127.0.0.1:9/v1"
_AUTH = f'''"""Keys without a database: every other than these two is left to LiteLLM."""

from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key):
    if api_key == "{LIMITED_KEY}":
        return UserAPIKeyAuth(api_key=api_key, rpm_limit={LIMITED_REQUESTS})
    if api_key == "{REVOKED_KEY}":
        raise Exception("Invalid proxy server token passed")
    return None
'''


def installed() -> bool:
    """Whether LiteLLM is here with what its proxy needs."""
    return importlib.util.find_spec("litellm_proxy_extras") is not None


def models(upstream: str, tools: str) -> dict[str, tuple[str, str]]:
    """Each model's name at the proxy: its LiteLLM name and its upstream."""
    return {
        "m": ("hosted_vllm/m", upstream),
        "through-openai": ("openai/m", upstream),
        "through-text": ("text-completion-openai/m", upstream),
        "dead": ("hosted_vllm/m", DEAD_UPSTREAM),
        "tools": ("hosted_vllm/t", tools),
    }


class LitellmProxy(ServerProcess):
    """One proxy from `start()` to `stop()`, with its configuration in `folder`."""

    kind = "litellm"
    health_path = "/health/liveliness"
    server_env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
        "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
        "LITELLM_LOCAL_BLOG_POSTS": "True",
        "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
        "LITELLM_MODE": "PRODUCTION",  # reads no .env
        "LITELLM_LOG": "ERROR",
        "LITELLM_RATE_LIMIT_WINDOW_SIZE": str(WINDOW_S),  # 60 by default
        "DISABLE_ADMIN_UI": "True",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "127.0.0.1",
    }

    def __init__(self, folder: Path, served: Mapping[str, tuple[str, str]]) -> None:
        # The process runs in the folder of what it serves.
        self._config = folder / "config.yaml"
        super().__init__(model_dir=self._config)
        (folder / "keys.py").write_text(_AUTH, "utf-8")
        config = {
            "model_list": [
                {"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "none"}}
                for name, (model, base) in served.items()
            ],
            # A router that retries, or rests a model that failed, would hide what the client does.
            "router_settings": {"num_retries": 0, "disable_cooldowns": True},
            "litellm_settings": {"telemetry": False},
            "general_settings": {"master_key": MASTER_KEY, "custom_auth": "keys.user_api_key_auth"},
        }
        self._config.write_text(json.dumps(config, indent=1), "utf-8")  # JSON is YAML

    def check(self) -> None:
        if not installed():
            raise NotInstalled("LiteLLM's proxy is missing: run `make test-extra WHICH=proxies`, which installs it")

    def _command(self) -> list[str]:
        program = Path(sys.executable).parent / "litellm"
        return [
            "env",
            "-u",
            "DATABASE_URL",
            str(program),
            "--config",
            str(self._config),
            "--host",
            HOST,
            "--port",
            str(self._port),
        ]
