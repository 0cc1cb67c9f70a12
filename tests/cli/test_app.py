"""The command line as a whole: version, help, first steps, a missing extra."""

import os
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import batchclient
from batchclient.cli.app import make_app
from batchclient_script import COMMANDS
from batchclient_script import main as script

from .conftest import read_rows

COSTLY = ("batchclient", "httpx", "openai", "pydantic", "rich", "typer", "uvicorn")
"""None of them is needed to answer a question about the command line."""


@pytest.fixture
def ask(monkeypatch, capsys):
    """Run the script on arguments that it answers itself; its exit status, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["batchclient", *arguments])
        monkeypatch.setattr("batchclient_script.quit_on_interrupt", lambda: None)
        status = 0
        try:
            script()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def imported_by(*arguments):
    """The exit status of a run of the script, and the modules that it has imported when it ends."""
    code = (
        "import atexit, sys\natexit.register(lambda: print(*sys.modules))\nfrom batchclient_script import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return done.returncode, set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), ([], 2)])
def test_a_question_about_the_command_line_imports_no_package_of_weight(arguments, status):
    ended, imported = imported_by(*arguments)
    assert ended == status
    assert "batchclient_script" in imported
    assert not imported & set(COSTLY)


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("map", {"batchclient.cli.demo", "batchclient.cli.simulate"}),
        ("simulate", {"rich", "batchclient.cli.demo", "batchclient.cli.map"}),
    ],
)
def test_a_command_is_imported_when_it_is_called(command, others):
    ended, imported = imported_by(command, "--help")
    assert ended == 0
    assert f"batchclient.cli.{command}" in imported
    # typer imports pydantic itself from 0.29 on.
    assert not imported & {*others, "httpx", "uvicorn"}


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_each_command_and_where_its_options_are(ask, option):
    status, said, complaints = ask(option)
    assert (status, complaints) == (0, "")
    commands = said.partition("Commands:\n")[2].splitlines()[: len(COMMANDS)]
    assert [line.split(maxsplit=1) for line in commands] == [[name, COMMANDS[name]] for name in COMMANDS]
    assert "batchclient COMMAND --help" in said
    app = make_app()
    assert {one.name for one in (*app.registered_commands, *app.registered_groups)} == set(COMMANDS)
    assert max(map(len, said.splitlines())) <= 100


def first_steps(said):
    return [line.strip() for line in said.splitlines() if line.startswith("  ")]


def test_without_arguments_it_says_what_to_do_first_and_fails(ask):
    # As git, click and uv do. A job whose arguments got lost has not mapped its file.
    status, results, said = ask()
    assert (status, results) == (2, "")
    assert said.count("\n") <= 12
    assert [shlex.split(step)[:2] for step in first_steps(said)] == [
        ["batchclient", "demo"],
        ["batchclient", "simulate"],
        ["batchclient", "map"],
    ]
    assert "batchclient --help" in said


def test_the_first_steps_fit_each_other_and_can_be_copied(ask, cli, server, tmp_path, monkeypatch):
    _demo, simulate, map_a_file = (shlex.split(step) for step in first_steps(ask()[2]))
    port = simulate[simulate.index("--port") + 1]
    assert f"http://localhost:{port}/v1" in map_a_file
    monkeypatch.chdir(tmp_path)
    (tmp_path / map_a_file[2]).write_text("one\ntwo\n")
    url = server.base_url
    result = cli(*(url if word.startswith("http:") else word for word in map_a_file[1:]))
    assert result.exit_code == 0, result.output
    assert len(read_rows(tmp_path / map_a_file[map_a_file.index("-o") + 1])) == 2


@pytest.mark.parametrize(
    ("command", "named"),
    [("map", ["BASE_URL", "MODEL", "API_KEY"]), ("demo", []), ("simulate", [])],
)
def test_each_command_has_help_for_each_option_and_names_the_variables(cli, command, named):
    said = cli(command, "--help", env={"COLUMNS": "200", "BATCHCLIENT_API_KEY": "hush"}).output
    options = [line for line in said.splitlines() if line.lstrip().startswith("-")]
    assert options
    assert all(len(line.split("  ")) > 2 for line in options), options
    assert [name for name in ("BASE_URL", "MODEL", "API_KEY") if f"BATCHCLIENT_{name}" in said] == named
    assert "hush" not in said


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from batchclient.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "map"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert missing in done.stderr
    assert "of the extra batchclient[cli]" in done.stderr


with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as project:
    SCRIPT = "from {} import {} as main; main()".format(
        *tomllib.load(project)["project"]["scripts"]["batchclient"].split(":")
    )


def test_the_version_of_what_is_installed():
    done = subprocess.run([sys.executable, "-c", SCRIPT, "--version"], capture_output=True, text=True)
    assert done.stdout == f"batchclient {batchclient.__version__}\n"


@pytest.mark.parametrize(
    ("imported", "command"),
    [
        ("anyio", ["-c", SCRIPT, "map"]),
        ("typer", ["-m", "batchclient", "map"]),
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


def test_a_program_that_imports_it_keeps_its_own_handling_of_ctrl_c(tmp_path):
    tell = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import batchclient\n")
    (tmp_path / "mine" / "__main__.py").write_text(tell)
    for program in (["-c", f"import batchclient.cli.app; {tell}"], ["-m", "mine"]):
        assert subprocess.run([sys.executable, *program], capture_output=True, cwd=tmp_path).stdout == b"True\n"


def test_simulate_says_in_a_line_that_a_port_is_taken(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli("simulate", "--port", port)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: cannot listen on 127.0.0.1:{port}: ")
    assert result.stderr.count("\n") == 1


def test_simulate_refuses_a_name_that_is_none_and_numbers_that_cannot_be(cli):
    for options in (["--model", ""], ["--max-num-queued-reqs", "-1"], ["--port", "65536"]):
        assert cli("simulate", *options).exit_code == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["--help", "map --help", "job status J", "metrics list"])
def test_a_stdout_that_takes_nothing_more_ends_a_command_without_a_traceback(
    cli, server, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\n")
    made = cli("map", "in.txt", "-o", "out", "--journal", "J", "--base-url", server.base_url, "--prompt", "{}")
    assert made.exit_code == 0
    run = [sys.executable, "-m", "batchclient", *command.split()]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (4, "Error: stdout: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = subprocess.run(run, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")
