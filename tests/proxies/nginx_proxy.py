"""nginx as a process, as many put it before their servers: with its defaults, but for the silence that it bears.

Its default bounds a body at 1 MB, buffers replies and speaks HTTP/1.0 to the upstream.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.live.server_process import HOST, ROOT, NotInstalled, ServerProcess

SILENCE_S = 3
_CONFIG = """daemon off;
master_process off;
error_log stderr;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    proxy_read_timeout {silence_s}s;
    server {{
        listen {host}:{port};
        location = /health {{ return 200; }}
        location /v1/ {{ proxy_pass {upstream}/v1/; }}
        location /dead/ {{ proxy_pass http://127.0.0.1:9/; }}
    }}
}}
"""


def program() -> str | None:
    """The nginx on the path, or the one of scripts/environments.py; ``None``: there is none."""
    fetched = Path(os.environ.get("BATCHCLIENT_NGINX_DIR") or ROOT / ".cache" / "nginx") / "usr/sbin/nginx"
    return shutil.which("nginx") or (str(fetched) if fetched.is_file() else None)


class NginxProxy(ServerProcess):
    """One nginx from `start()` to `stop()`, before `upstream` (a root URL), with its configuration in `folder`."""

    kind = "nginx"

    def __init__(self, folder: Path, upstream: str) -> None:
        # The process runs in the folder of what it serves.
        self._config = folder / "nginx.conf"
        super().__init__(model_dir=self._config)
        self._upstream = upstream

    @property
    def dead_url(self) -> str:
        """The same nginx before an upstream that is not there."""
        return f"http://{HOST}:{self.port}/dead/v1"

    def check(self) -> None:
        if program() is None:
            raise NotInstalled("nginx is missing: run `make test-extra WHICH=proxies`, which fetches Debian's")

    def _command(self) -> list[str]:
        folder = self._config.parent
        text = _CONFIG.format(folder=folder, host=HOST, port=self._port, upstream=self._upstream, silence_s=SILENCE_S)
        self._config.write_text(text, "utf-8")
        return [program() or "nginx", "-p", str(folder), "-e", "stderr", "-c", str(self._config)]
