"""The command line as a whole: version, help, a missing extra."""

import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import batchclient
from batchclient import cli as cli_module


def test_version(cli):
    assert cli("--version").stdout == f"batchclient {batchclient.__version__}\n"


def test_without_a_command_it_shows_help_and_fails(cli):
    result = cli()
    assert result.exit_code == 2
    for command in ("map", "simulate", "demo"):
        assert command in result.output


@pytest.mark.parametrize("command", ["map", "simulate", "demo"])
def test_each_command_has_help_for_each_option(cli, command):
    result = cli(command, "--help", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    options = [line for line in result.output.splitlines() if line.lstrip().startswith("-")]
    assert options
    assert all(len(line.split("  ")) > 2 for line in options), options


def test_the_key_is_in_no_help(cli):
    assert "hush" not in cli("map", "--help", env={"BATCHCLIENT_API_KEY": "hush"}).output


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from batchclient.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert missing in done.stderr
    assert "pip install 'batchclient[cli]'" in done.stderr


def test_a_missing_module_of_ours_is_no_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "batchclient.cli.app", None)
    with pytest.raises(ModuleNotFoundError):
        cli_module.main()


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "batchclient", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("batchclient ")


with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as project:
    SCRIPT = "from {} import {} as main; main()".format(
        *tomllib.load(project)["project"]["scripts"]["batchclient"].split(":")
    )


@pytest.mark.parametrize(
    ("imported", "command"),
    [
        ("anyio", ["-c", SCRIPT]),
        ("typer", ["-c", SCRIPT]),
        ("anyio", ["-m", "batchclient"]),
        ("typer", ["-m", "batchclient"]),
        ("anyio", ["-m", "batchclient.simulator"]),
    ],
)
def test_ctrl_c_during_the_imports_ends_it_in_silence(tmp_path, imported, command):
    # A module that the import comes past sends the signal.
    (tmp_path / f"{imported}.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('it went on')\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, *command], capture_output=True, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_program_that_imports_it_keeps_its_own_handling_of_ctrl_c():
    code = "import signal, batchclient.cli.app; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"True\n"


def test_so_does_a_package_that_is_run_with_m_and_imports_it(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("import batchclient\n")
    (package / "__main__.py").write_text(
        "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    ran = subprocess.run([sys.executable, "-m", "mine"], capture_output=True, cwd=tmp_path)
    assert ran.stdout == b"True\n"


def test_simulate_says_in_a_line_that_a_port_is_taken(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("simulate", "--port", port)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: cannot listen on 127.0.0.1:{port}: ")
    assert result.stderr.count("\n") == 1


def test_simulate_refuses_a_name_that_is_none_and_a_bound_below_nothing(cli):
    assert cli("simulate", "--model", "").exit_code == 2
    assert cli("simulate", "--max-num-queued-reqs", "-1").exit_code == 2


@pytest.mark.parametrize("port", [-1, 65_536])
def test_simulate_refuses_a_port_that_cannot_be(cli, port):
    assert cli("simulate", "--port", port).exit_code == 2


@pytest.mark.parametrize("arguments", [[], ["--port", "1"], ["[]"], ["1"]])
def test_the_child_process_is_for_the_embedded_server_alone(arguments):
    command = [sys.executable, "-m", "batchclient.simulator", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "batchclient simulate" in done.stderr
