"""The command line in this process: ``run("map", file, "-o", out).exit_code``."""

import functools

from typer import testing

from batchclient.cli.app import make_app

make_app_once = functools.cache(make_app)
# Each time it makes a command, typer has pydantic look at each option: ten times as long as a short ``map`` takes.
testing._get_command = functools.cache(testing._get_command)


def run(*arguments, charset="utf-8", **options):
    """Run a command; return its status, its output, and the exception that it ended with."""
    words = [str(each) for each in arguments]
    return testing.CliRunner(charset=charset).invoke(make_app_once(tuple(words[:1])), words, **options)
