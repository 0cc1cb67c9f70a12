"""The README and the docs do as they say.

Rules:
- A block of ``python`` that ends with ``asyncio.run(main())`` is a program: it runs as a file.
- The other blocks of a page run in order, as ``python -m asyncio`` runs pasted blocks. So a block has
  no blank line within a function or a ``with``, and one after it.
- Each block imports the names that it uses.
- A page whose blocks need a server names one before the first of them.
- Blocks of ``py`` need further packages: tests in ``integrations``, ``ray`` and ``redis`` run them, in their
  environments.
- A ``console`` block shows files with ``$ cat NAME``: those before a command are written, those after it are
  compared. The lines after a command are parts of what it says, with ``…`` for anything.
"""

from __future__ import annotations

import ast
import asyncio
import csv
import inspect
import json
import logging
import os
import random
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import openai
import pytest

from tests.snapshots.surface import MODULES

from batchclient import (
    AdaptiveLimit,
    Adjustment,
    Batching,
    EndpointStatistics,
    Http,
    LaneStatistics,
    LengthStatistics,
    Queue,
    Server,
    Statistics,
    Telemetry,
)
from batchclient import params
from batchclient._doctor.checks import CHECKS
from batchclient._metrics.dashboards import SERVERS, alerts_of
from batchclient.bench import Measurement, Setting
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient._settings import PRESETS, Sending, Settings
from batchclient.jobs.statuses import Status, of_signal
from batchclient.openai import _sharing
from batchclient.simulator import EmbeddedServer, prompt_digest
from tests import command_line
from tests.cli.conftest import has_rows, read_rows, wait_for, write_rows

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [
    ROOT / f"{each}.md" for each in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "examples/README", "tests/README")
]
OTHER_PAGES += sorted((ROOT / "benchmarks").rglob("*.md"))
"""Their links are checked as well, and nothing else."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TESTING = ROOT / "docs/guide/testing.md"
"""Its blocks are tests."""
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
SECTION_LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://localhost:8000/v1"
"""Where the pages find a server."""
LINE_BY_LINE = sys.version_info < (3, 13)
"""From 3.13 on a terminal hands over a pasted block as a whole, and a pipe reads none of them."""
SHORTER = {"warm_up_s=1, window_s=3": "warm_up_s=0.1, window_s=0.2", "budget_s=20": "budget_s=2"}
"""What a page measures for seconds is measured here for a moment."""
A_SERVER = "quickstart.md#a-server-to-talk-to"
TUTORIAL = ROOT / "docs/guide/quickstart.md"
MOVED: dict[str, str] = tomllib.loads((ROOT / "docs/moved.toml").read_text())
"""By an old page, or a section of one: the page, or its section, that has its text now."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(profile="instant", model="m") as embedded:
        yield embedded


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without a terminal is somebody who looks on: a server that is not there is no reason to wait."""
    monkeypatch.setattr("batchclient.cli._map_options.WAIT_S", 0.0)
    for variable in ("BASE_URL", "MODEL", "API_KEY"):
        monkeypatch.delenv(f"BATCHCLIENT_{variable}", raising=False)


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """A page's blocks may set levels and add handlers; other tests in this process are not to see them."""
    before = [(each, each.level, list(each.handlers)) for each in (logging.root, logging.getLogger("batchclient"))]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        for added in [each for each in logger.handlers if each not in handlers]:
            logger.removeHandler(added)


@pytest.fixture
def cli():
    """Run a command in this process."""
    return command_line.run


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[str]:
    return [block for block in BLOCK.findall(page.read_text()) if block.endswith("asyncio.run(main())\n")]


def pasted(page: Path) -> list[str]:
    return [block for block in BLOCK.findall(page.read_text()) if not block.endswith("asyncio.run(main())\n")]


OTHERS = [page for page in PAGES if page != TESTING]


@pytest.mark.parametrize("page", [page for page in OTHERS if programs(page)], ids=name)
def test_the_programs_of_a_page_run(
    page: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in programs(page):
        Path("file.py").write_text(program.replace(ADDRESS, server.base_url))
        # In this process, since openai takes a second to import.
        runpy.run_path("file.py", run_name="__main__")


@pytest.mark.parametrize("page", [page for page in OTHERS if pasted(page)], ids=name)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        names: dict[str, object] = {"__name__": "__main__"}
        for block in pasted(page):
            source = block.replace(ADDRESS, server.base_url)
            for given, shorter in SHORTER.items():
                source = source.replace(given, shorter)
            pending = eval(compile(source, name(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.isawaitable(pending):
                await pending

    asyncio.run(main())


def test_the_readme_begins_with_a_chat_a_prompt_the_drop_in_and_two_files() -> None:
    begin = "\n".join((ROOT / "README.md").read_text().splitlines()[:45])
    (console,) = re.findall(r"^```console\n(.*?)^```", begin, re.MULTILINE | re.DOTALL)
    commands = [line.startswith("$ batchclient map ") for line in console.splitlines()]
    assert commands == [False, True, False, True, False]  # after each what it prints
    shown = ("client.chat(", "client.complete(", "from batchclient.openai import AsyncOpenAI  # in place of")
    assert all(each in begin for each in shown)


def test_the_readmes_commands_run_as_they_stand_and_print_what_it_says(server: EmbeddedServer, tmp_path: Path) -> None:
    (console,) = re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    steps = [step.partition("\n") for step in console.split("$ ")[1:]]
    assert steps[0][0].startswith("export BATCHCLIENT_BASE_URL=")
    for command, _, shown in steps[1:]:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=tmp_path, env={**os.environ, "BATCHCLIENT_BASE_URL": server.base_url},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        # Time and length of answers are not the same in every run.
        like = r"\d[\d.]*".join(map(re.escape, re.split(r"(?<=in )[\d.]+(?= s)|\d+(?= rows/s| out)", shown.strip())))
        assert re.search(like, done.stderr), done.stderr


@pytest.mark.skipif(not LINE_BY_LINE, reason="a pipe reads no pasted block from Python 3.13 on")
def test_a_block_can_be_pasted_as_it_stands(server: EmbeddedServer, tmp_path: Path) -> None:
    blocks = [block.replace(ADDRESS, server.base_url) for block in pasted(TUTORIAL)] + [
        "print('after the last block')\n"
    ]
    command = [sys.executable, "-m", "asyncio"]
    done = subprocess.run(
        command, input="\n\n".join(blocks), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Error" not in done.stderr, done.stderr
    assert "after the last block" in done.stdout, done.stderr


@pytest.mark.parametrize("page", [page for page in OTHERS if pasted(page)], ids=name)
def test_a_terminal_knows_where_a_pasted_statement_ends(page: Path) -> None:
    for block in pasted(page):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            if hasattr(statement, "body"):
                end = statement.end_lineno or len(lines)
                assert all(lines[statement.lineno - 1 : end]), f"a blank line within {lines[statement.lineno - 1]}"
                assert not "".join(lines[end : end + 1]), f"no blank line after {lines[statement.lineno - 1]}"


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name)
def test_a_block_imports_what_it_uses(page: Path) -> None:
    imported: set[str] = set()
    for block in BLOCK.findall(page.read_text()):
        nodes = list(ast.walk(ast.parse(block)))
        aliases = [alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
        own = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = own | {node.id for node in names if isinstance(node.ctx, ast.Store)}
        late = {node.id for node in names} & imported - bound
        assert not late, f"{name(page)} imports {late} further above only:\n{block}"
        imported |= own


@pytest.mark.parametrize(
    "page", [page for page in OTHERS if ADDRESS in "".join(BLOCK.findall(page.read_text()))], ids=name
)
def test_a_page_names_a_server_before_its_blocks(page: Path) -> None:
    source = page.read_text()
    first = next(block for block in BLOCK.finditer(source) if ADDRESS in block[1])
    if page.parent != ROOT:
        assert A_SERVER in source[: first.start()] or page == TUTORIAL


def as_module(page: Path) -> str:
    """Return a page's blocks as a module with each line in its place.

    Each block is a function within the one before. So it knows the names of those before it, may
    give them anew, and may ``await``.
    """
    lines, depth, inside = [], 0, False
    for line in page.read_text().splitlines():
        if inside and line == "```":
            lines.append(" " * depth + "pass")
            inside = False
        elif inside:
            lines.append(" " * depth + line if line else "")
        elif line == "```python":
            lines.append(" " * depth + f"async def block_{depth}() -> None:")
            depth, inside = depth + 1, True
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


@pytest.mark.long
def test_the_blocks_of_all_pages_are_typed(tmp_path: Path) -> None:
    for page in PAGES:
        if BLOCK.search(page.read_text()):
            module = tmp_path / (re.sub(r"\W", "_", name(page)) + ".py")
            module.write_text(as_module(page))
    # A cache of its own: ``make lint`` may run at the same time.
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache/docs")]
    command += map(str, sorted(tmp_path.iterdir()))
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout.replace(str(tmp_path), "")


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def sections(page: Path) -> set[str]:
    """A page's headings, as links name them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=name)
def test_the_sections_that_a_page_links_to_are_there(page: Path) -> None:
    for target, section in SECTION_LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        if "://" not in target and linked.suffix == ".md":
            assert section in sections(linked), f"{name(page)} links to {target}#{section}"


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_page_that_was_moved_is_gone_and_its_text_has_a_place(old: str, new: str) -> None:
    page, _, section = new.partition("#")
    assert not (ROOT / "docs" / old.partition("#")[0]).exists()
    assert not section or section in sections(ROOT / "docs" / page), new
    assert (ROOT / "docs" / page).exists(), new


def test_nothing_names_a_page_that_was_moved() -> None:
    """Links of pages are checked above; these are the names in code, messages and build files."""
    old = {f"docs/{each.partition('#')[0]}" for each in MOVED}
    files = [ROOT / "Makefile", *ROOT.glob("*.toml"), ROOT / "scripts/told_numbers.toml"]
    files += [path for folder in ("src", "tests", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "examples").rglob("*.yaml")
    named = {(name(path), page) for path in files for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert not {(path, page) for path, page in named if page in old}


def test_the_package_names_no_page_by_its_path() -> None:
    """Whoever has installed it has no folder ``docs``."""
    path = re.compile(r"docs/(?:\w+\.md|(?:guide|reference|how-to|explanation)/)")
    assert [name(file) for file in (ROOT / "src").rglob("*.py") if path.search(file.read_text())] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = ROOT / "docs/README.md"
    linked = {(contents.parent / target).resolve() for target in LINK.findall(contents.read_text())}
    assert not {name(page) for page in PAGES[1:] if page not in {*linked, contents, ROOT / "docs/index.md"}}


def test_the_pages_of_public_names_draw_each_name_of_the_modules_of_the_snapshot_once() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference/api").glob("*.md"))
    drawn = re.findall(r"^\.\. auto(\w+):: (\S+)$", pages, re.MULTILINE)
    by_name = [resolve_name(dotted) for kind, dotted in drawn if kind != "module"]
    whole = [dotted for kind, dotted in drawn if kind == "module"]
    assert len({*map(id, by_name)}) == len(by_name)
    assert sorted({*whole, "batchclient", *re.findall(r"`(batchclient\.\w+)`", pages)}) == sorted(MODULES)
    for module in map(import_module, {*MODULES} - {*whole}):
        kinds = [each for each in module.__all__ if not isinstance(getattr(module, each), str)]
        assert [each for each in kinds if not any(getattr(module, each) is other for other in by_name)] == []


def test_the_table_of_public_modules_is_that_of_the_snapshot() -> None:
    table = (ROOT / "docs/reference/public.md").read_text()
    told = re.findall(r"`(batchclient[\w.]*|\.\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(f"batchclient.integrations{each}" if each[0] == "." else each for each in told) == sorted(MODULES)


def test_the_page_on_settings_shows_the_presets_as_they_are() -> None:
    lines = (ROOT / "docs/guide/settings.md").read_text().splitlines()
    shown_as = {
        "max_size": "`Batching(max_size=",
        "linger_s": "`Batching(linger_s=",
        "refill_s": "wait at a full limit",
    }
    for field, begin in shown_as.items():
        row = next(line for line in lines if line.startswith(f"| {begin}"))
        shown = [eval(cell) for cell in row.split("|")[2:5]]
        assert shown == [getattr(PRESETS[preset], field) for preset in ("latency", "balanced", "throughput")], field


def rows(group: type | None) -> list[tuple[str, str]]:
    """Return (argument or field, default) for each row of the reference's table."""
    page = (ROOT / "docs/reference/client.md").read_text()
    heading = "## Arguments" if group is None else f"### `{group.__name__}`"
    section = page.partition(f"\n{heading}\n")[2].partition("\n##")[0]
    return re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", section, re.MULTILINE)


@pytest.mark.parametrize("group", [None, AdaptiveLimit, Batching, Queue, Http, Telemetry], ids=str)
def test_the_reference_has_each_argument_once(group: type | None) -> None:
    names = BATCH_CLIENT_ARGUMENTS | {"from_environment"} if group is None else {field.name for field in fields(group)}
    assert sorted(name for name, _ in rows(group)) == sorted(names)


@pytest.mark.parametrize("group", [None, AdaptiveLimit, Batching, Queue, Http], ids=str)
def test_the_reference_has_the_defaults_of_the_code(group: type | None) -> None:
    given = {name: default.replace(",", "") for name, default in rows(group)}
    numbers = {name: float(default) for name, default in given.items() if default.isdigit()}
    assert numbers
    code = {field.name: field.default for field in fields(Settings if group is None else group)} | {
        "read_timeout_s": Sending().timeouts.read_s
    }
    assert numbers == {name: code[name] for name in numbers}


def test_the_reference_has_what_a_server_takes() -> None:
    page = " ".join((ROOT / "docs/reference/client.md").read_text().split())
    told = ", ".join(f"{field.name}={field.default}" for field in fields(Server)[1:])
    assert f"`Server(url, *, {told})`" in page


@pytest.mark.parametrize(
    "kind", [Statistics, EndpointStatistics, LaneStatistics, LengthStatistics, Adjustment], ids=str
)
def test_the_reference_has_each_field_of_the_statistics_once(kind: type) -> None:
    page = (ROOT / "docs/reference/numbers.md").read_text()
    section = page.partition(f"\n### `{kind.__name__}`\n")[2].partition("\n##")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(field.name for field in fields(kind))


def test_the_error_tree_is_the_one_in_the_code() -> None:
    import batchclient.errors as errors

    page = (ROOT / "docs/reference/client.md").read_text()
    assert all(f"{each}" in page for each in errors.__all__)


def test_the_tables_of_the_docs_are_those_of_the_code() -> None:
    script = ROOT / "scripts" / "tables.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_numbers_of_the_prose_are_those_of_the_code() -> None:
    script = ROOT / "scripts" / "told_numbers.py"
    checked = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_page_of_spans_has_each_event() -> None:
    from batchclient._telemetry import conventions

    page = (ROOT / "docs/reference/numbers.md").read_text()
    events = re.findall(r"^\| `(batchclient\.\w+)` \|.*\|.*\|$", page.partition("| event of a call |")[2], re.MULTILINE)
    assert events == [conventions.RETRY, conventions.SPLIT, conventions.FAILOVER]


def test_each_figure_of_the_readme_is_in_its_cell_of_the_results() -> None:
    found = re.search(r"<!-- measured -->(.*?)<!-- /measured -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "README.md has no measured section"
    results = cells_of((ROOT / "benchmarks/results/on_gpu.md").read_text())
    servers = json.loads((ROOT / "benchmarks/results/on_gpu.json").read_text())["servers"]
    shown = cells_of(found[1])
    assert len(shown) == 4
    for job, *cells in shown:
        told = re.fullmatch(r"([\d,]+ \w+) of ([\d,]+) tokens?, (?:model of )?([\d.]+ B)( \(no gain\))?", job)
        assert told, f"not of the form 'N completions of T tokens, M B': {job}"
        calls, tokens, model, loses = told.groups()
        (row,) = [
            row
            for row in results
            if row[0] == model and row[1].startswith(f"{calls} of ") and row[1].endswith(f", {tokens} tokens out")
        ]
        ((runs, commit),) = [
            (len(arms["BatchClient"]), server["facts"][-1]["commit"])
            for served, server in servers.items()
            for name, arms in server["jobs"].items()
            if f" of {model[:-2]} billion " in served and row[1] == f"{calls.partition(' ')[0]} {name}"
        ]
        own, theirs = (row[column].partition(" ")[0] for column in (2, 3))
        engine = row[5].partition(", ")[2] or "not measured"
        assert cells == [own, theirs, engine, str(runs), commit], job
        assert row[7] == f"{runs}, {commit}"
        assert bool(loses) == (row[4] < "1"), job


def test_each_rate_of_the_readme_is_that_of_the_results() -> None:
    """One column has the rates at a server that answers at once, the next those on vLLM."""
    readme = (ROOT / "README.md").read_text()
    shown = cells_of(readme[readme.index("| tool |") :])
    compared = 0
    for name, column in {"batch_files": 2, "batch_files_vllm": 3}.items():
        for row in cells_of((ROOT / f"benchmarks/results/{name}.md").read_text()):
            (cell,) = [each[column] for each in shown if each[0].strip("`")[:8] == row[0].strip("`")[:8]]
            measured = re.findall(r"[\d,]+", re.sub(r"\(.*?\)", "", row[1]))
            assert measured and re.findall(r"[\d,]*\d", cell) == measured, (row[0], cell)
            compared += 1
    assert compared == 6


def cells_of(text: str) -> list[list[str]]:
    """The rows of the first table of a text, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_table_of_figures_names_a_commit_and_a_command_that_is_there() -> None:
    notes = (ROOT / "benchmarks/notes/tables.md").read_text()
    gone = set(re.findall(r"`(\w+\.py)`", notes.partition("\n## ")[0]))
    sections = [*(ROOT / "docs/guide/figures.md").read_text().split("\n## ")[1:], *notes.split("\n## ")[1:]]
    for section in [each for each in sections if "\n| - |" in each]:
        programs = re.findall(
            r"^    [0-9a-f]{7,8}  .* UTC  python benchmarks/((?:lab/)?\w+\.py)", section, re.MULTILINE
        )
        assert programs, section.partition("\n")[0]
        assert [each for each in programs if each not in gone and not (ROOT / "benchmarks" / each).exists()] == []


def test_the_page_of_figures_has_or_names_every_table_and_its_program() -> None:
    page = (ROOT / "docs/guide/figures.md").read_text()
    named = re.findall(r"<!-- results:(\w+) -->|benchmarks/results/(\w+)\.md\)", page)
    assert sorted(map("".join, named)) == sorted(file.stem for file in (ROOT / "benchmarks/results").glob("*.md"))
    others = page.partition("\n## The other tables\n")[2]
    programs = re.findall(r"\| `((?:lab/)?\w+\.py)[^|]* \|$", others, re.MULTILINE)
    assert programs and all((ROOT / "benchmarks" / each).exists() for each in programs)


def test_the_page_of_figures_shows_the_results() -> None:
    page = (ROOT / "docs/guide/figures.md").read_text()
    for name, shown in re.findall(r"<!-- results:(\w+) -->\n(.*?)\n<!-- /results", page, re.DOTALL):
        result = (ROOT / f"benchmarks/results/{name}.md").read_text()
        assert shown == result.rstrip(), f"python benchmarks/report.py: {name}"


# Words and rows that must be those of the code ---------------------------------------------------------------------


def test_the_reference_says_which_servers_have_a_parameter_with_a_type():
    page = (ROOT / "docs/reference/client.md").read_text()
    table = page.partition("| parameters with a type |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall("`([a-z_]+)`", row.rpartition(" | ")[2])}
    calls = [name for name in params.__all__ if not name.endswith("MapParams") and name != "StructuredOutputs"]
    assert named == {field for call in calls for field in getattr(params, call).__annotations__}


def test_each_check_of_the_doctor_has_a_row():
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \|", section("## `batchclient doctor`").partition("| finding |")[2], re.MULTILINE
    )
    assert sorted(rows) == sorted(check.__name__.replace("_", "-") for check in CHECKS)


def test_the_table_of_statuses_has_every_one():
    cells = re.findall(r"^\| ([\d, ]+) \|", section("## Exit statuses"), re.MULTILINE)
    documented = {int(number) for number in ", ".join(cells).split(", ")}
    signals = {of_signal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    assert documented == {*map(int, Status)} | signals
    assert json.dumps(Status.OK) == "0"


def test_the_words_of_the_way_out_are_of_reasons_and_the_page_has_the_place():
    page = ROOT / "docs/reference/drop-in.md"
    assert all(f"`{reason}`" in page.read_text() for reason in _sharing.WAYS_OUT)
    assert f"## {_sharing.SECTION}\n" in page.read_text()


def test_the_guide_tells_of_each_alert():
    page = (ROOT / "docs/guide/watch.md").read_text()
    assert [
        alert.name
        for alert in alerts_of(["client", "jobs", "worker", *SERVERS, "dcgm"])
        if f"`{alert.name}`" not in page
    ] == []


# The table of tests/faults/README.md: each row once, and every test it names exists ----------------------------------

FAULTS = (ROOT / "tests/faults/README.md").read_text()
FAULT_ROWS = {int(number): line for number, line in re.findall(r"^\| (\d+) (\|.*)$", FAULTS, re.MULTILINE)}
FAULT_TESTS = re.findall(r"`([\w/]+\.py)::(\w+)`", FAULTS)
NOT_BUILT = ()
CANNOT_BE_SEEN = 17


def defined(path):
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_each_row_is_there_once():
    assert sorted(map(int, re.findall(r"^\| (\d+) \|", FAULTS, re.MULTILINE))) == [
        row for row in range(1, 78) if row not in NOT_BUILT
    ]


def test_each_row_names_a_test():
    assert [row for row, line in FAULT_ROWS.items() if "::test_" not in line] == [CANNOT_BE_SEEN]


def test_every_test_that_is_named_exists():
    assert FAULT_TESTS
    assert [f"{file}::{name}" for file, name in FAULT_TESTS if name not in defined(ROOT / "tests" / file)] == []


def test_every_test_by_a_rows_number_is_named_in_that_row():
    for path in (ROOT / "tests/faults").glob("test_*.py"):
        for name in defined(path):
            found = re.match(r"test_rows?_(\d+)(?:_and_(\d+))?_", name)
            for row in filter(None, found.groups() if found else ()):
                assert f"::{name}`" in FAULT_ROWS[int(row)], f"row {row} does not name {name}"


# The page about testing: every test runs, as its reader would run it ------------------------------------------------


@pytest.mark.skipif(
    openai.__version__ < "3", reason="the page's tests with openai are for its version 3, which sends by httpx2"
)
def test_the_tests_of_the_page_pass(pytester):
    (conftest,) = [each for each in BLOCK.findall(TESTING.read_text()) if "strict = True" in each]
    source = "\n".join(each for each in BLOCK.findall(TESTING.read_text()) if each is not conftest)
    pytester.makepyfile(source)
    options = ["-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    expected = len(re.findall(r"^ *(?:async )?def test_", source, re.MULTILINE))
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=expected)


def test_what_it_says_of_a_strict_project_holds(pytester):
    (conftest,) = [each for each in BLOCK.findall(TESTING.read_text()) if "strict = True" in each]
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        """
        import httpx

        def test_it(mock_llm):
            httpx.post(mock_llm.base_url + "/completions", json={"prompt": "unknown"})
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").assert_outcomes(passed=1, errors=1)


def test_the_failure_that_it_shows_is_one(pytester):
    (shown,) = re.findall(r"^```text\nAssertionError: (.*?)^```", TESTING.read_text(), re.MULTILINE | re.DOTALL)
    pytester.makepyfile(
        f"""
        import httpx, pytest

        def test_it(mock_llm):
            for prompt, tokens in (("Summarise: x", 8), ("Classify: x", 16)):
                httpx.post(mock_llm.base_url + "/completions", json={{"prompt": prompt, "max_tokens": tokens}})
            with pytest.raises(AssertionError) as caught:
                mock_llm.assert_called_with("Classify: x", max_tokens=8)
            assert str(caught.value).startswith({shown.rstrip()!r})
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_a_failing_assertion_shows_the_test_and_the_message_and_not_its_own_source(pytester):
    pytester.makepyfile(
        """
        def test_it(mock_llm):
            mock_llm.assert_called_with("missing")
        """
    )
    printed = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").stdout.str()
    assert "mock_llm.assert_called_with" in printed
    assert "expected a call" in printed
    assert "_differences" not in printed


# Pages about commands: fields are named, and commands run as they stand ----------------------------------------------

DOCS = ROOT / "docs"
COMMANDS = (DOCS / "reference/commands.md").read_text()


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


BENCH_BLOCKS = blocks("guide/measure", "text")
ROWS_BLOCKS = blocks("reference/rows", "console")
PIECES = [*" ,;'#\\\t\u2028", "", '"', '""', "\n", "\r\n", "a word", "é", "漢字", "🙂", "=1+1"]
"""Of texts that have all that a quoted value of CSV may have."""


@pytest.fixture
def shell(tmp_path, server):
    """Start commands of a page in a folder of their own; killed at the end."""
    (tmp_path / "batchclient").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m batchclient "$@"\n')
    (tmp_path / "batchclient").chmod(0o755)
    (tmp_path / "here").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = []

    def start(text):
        program = ["bash", "-o", "pipefail", "-c", text.replace(ADDRESS, server.base_url)]
        group = {"cwd": tmp_path / "here", "env": environment, "text": True, "start_new_session": True}
        started.append(subprocess.Popen(program, **group, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def helped(cli, monkeypatch):
    """Ask a command for its help; return its options and its commands."""
    monkeypatch.setenv("COLUMNS", "200")

    def ask(*command):
        options, _, commands = cli(*command, "--help").stdout.partition("Options:")[2].partition("Commands:")
        there = set(re.findall(r"^  (?:-\w, )?(--[a-z0-9][a-z0-9-]+)", options, re.MULTILINE)) - {"--help"}
        return there, sorted(re.findall(r"^  ([a-z]+) ", commands, re.MULTILINE))

    return ask


def section(heading):
    """A section of the page of commands."""
    return COMMANDS.partition(f"\n{heading}\n")[2].partition("\n#")[0]


def names_in(page, heading):
    """The names in the first column of a section's table."""
    table = page.partition(f"\n{heading}\n")[2].partition("\n#")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))


# Blocks of consoles ------------------------------------------------------------------------------------------------------
#
# A block shows files with ``$ cat NAME``: those before a command are written, those after it are compared. The lines
# after a command are parts of what it says, with ``…`` for anything; a program other than batchclient says exactly those.


def is_like(shown, there):
    """Whether a value is as the page shows it: ``…`` is any value, or any further fields."""
    if shown == "…":
        return True
    if isinstance(shown, dict) and isinstance(there, dict):
        names = shown.keys() - {"…"}
        return ("…" in shown or names == there.keys()) and all(
            name in there and is_like(shown[name], there[name]) for name in names
        )
    if isinstance(shown, list) and isinstance(there, list):
        return len(shown) == len(there) and all(map(is_like, shown, there))
    return shown == there


def compare(shown, there):
    if not shown.startswith("{"):
        assert re.fullmatch(re.escape(shown).replace("…", ".*"), there), there
        return
    rows, found = ([json.loads(line) for line in text.splitlines()] for text in (shown, there))
    assert len(rows) == len(found)
    for row, other in zip(rows, found, strict=True):
        assert is_like(row, other), (row, other)


@pytest.fixture
def run(cli, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", server.base_url)
    monkeypatch.setenv("BATCHCLIENT_MODEL", server.model)
    return lambda block: follow(block, cli)


def follow(block, cli):
    for step in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        program, *given = shlex.split(command.replace("$PWD", str(Path.cwd())))
        if program == "batchclient":
            done = cli(*given)
            for line in shown.splitlines():
                assert re.search(re.escape(line).replace("…", ".*"), done.output), done.output
        elif program == "export":
            continue  # the fixture has done so
        elif program == "cat" and len(given) == 1:
            path = Path(given[0])
            if path.exists():
                compare(shown, path.read_text())
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(shown)
        elif program == "python":
            compare(shown, subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True).stdout)
        else:
            subprocess.run(["bash", "-c", command], check=True)


@pytest.mark.parametrize("block", ROWS_BLOCKS, ids=range(len(ROWS_BLOCKS)))
def test_a_block_about_rows_goes_in_and_comes_out(run, block):
    run(block)


@pytest.mark.parametrize("page", ["map-a-file", "night-job", "bad-answers"])
def test_the_blocks_of_a_page_run_one_after_the_other(run, page):
    for block in blocks(f"guide/{page}", "console"):
        run(block)


def test_the_quickstart(run):
    first, again = blocks("guide/quickstart", "console")
    run(first)
    reviews = Path("reviews.csv").read_text()
    Path("reviews.csv").write_text(reviews.replace("lamp,", "lamp,Broke after a week."))
    run(again)


# map -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(cli, server, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": "0", "text": "a"}, {"text": "word " * 40000}])
    given = ("--base-url", server.base_url, "--prompt", "Say {text}", "--max-tokens", "4")
    assert cli("map", source, "-o", tmp_path / "out.jsonl", *given).exit_code == 1
    return tmp_path / "out.jsonl.journal"


def test_the_commands_of_groups(helped):
    assert sorted(name.split()[2] for name in names_in(COMMANDS, "## `batchclient job`")) == helped("job")[1]
    assert sorted(name.split()[2] for name in names_in(COMMANDS, "## `batchclient dead`")) == helped("dead")[1]
    named = re.findall(r"`batchclient metrics ([a-z]+)`", section("## `batchclient top`, `metrics`, `demo`"))
    assert sorted(named) == helped("metrics")[1]
    for command in helped("bench")[1]:
        assert f"batchclient bench {command}" in " ".join(section("## `batchclient bench`").split())


@pytest.mark.parametrize(
    ("heading", "commands"),
    [
        ("## `batchclient bench`", [("bench", "compare")]),
        ("## `batchclient dead`", [("dead", "list"), ("dead", "retry"), ("dead", "drop")]),
        ("## `batchclient job`", [("job", "status"), ("job", "export")]),
        ("## `batchclient top`, `metrics`, `demo`", [("top",), ("metrics", "rules"), ("metrics", "list")]),
    ],
)
def test_the_options_of_commands_without_a_table(helped, heading, commands):
    there = set().union(*(helped(*command)[0] for command in commands)) - {"--output"}
    assert not {option for option in there if f"`{option}" not in section(heading)}


def test_the_fields_of_the_status_and_of_an_export(cli, job):
    assert names_in(COMMANDS, "### `status --json`") == list(json.loads(cli("job", "status", job, "--json").stdout))
    lines = [json.loads(line) for line in cli("job", "export", job).stdout.splitlines()]
    of_other_calls = {"embedding", "classification", "score", "ranking"}
    assert (
        set(names_in(COMMANDS, "### A line of `export`")) == {name for line in lines for name in line} | of_other_calls
    )


def test_the_loop_of_a_night_starts_a_killed_command_again(shell, server, cli, tmp_path):
    out, part = tmp_path / "here" / "out.jsonl", tmp_path / "here" / "out.jsonl.part"
    chosen = random.Random(7)
    # A number ends each text: an empty one would fail, and equal ones share nothing here.
    texts = ["".join(chosen.choices(PIECES, k=6)) + f" {number}" for number in range(1000)]
    with (tmp_path / "here" / "in.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    (loop,) = blocks("guide/night-job", "text")
    assert "sleep 60" in loop
    # So that it is not done before it is killed: all rows are some sixteen requests.
    server.set_faults("stall,after=8")
    process = shell(loop.replace("sleep 60", "sleep 0.01"))
    wait_for(lambda: has_rows(part, 8))
    # Whoever writes the journal is named in its lease.
    os.kill(json.loads((tmp_path / "here" / "out.jsonl.journal.lease").read_text())["pid"], signal.SIGKILL)
    server.set_faults()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Killed" in said
    rows = read_rows(out)
    assert [(row["id"], row["text"]) for row in rows] == [(str(number), text) for number, text in enumerate(texts)]
    for row in rows:
        assert row["completion"].startswith(prompt_digest(f"Name the language: {row['text']}")), row
    status = json.loads(cli("job", "status", f"{out}.journal", "--json").stdout)["run"]
    assert (status["read"], status["answered"] + status["reused"], status["failed"]) == (1000, 1000, 0)
    assert status["reused"] > 0


# bench -----------------------------------------------------------------------------------------------------------------


def test_the_reference_names_every_field_and_the_commands_answer(cli, server, tmp_path):
    """The command of the first look, with a shorter measurement; the port is a free one."""
    (first,) = [block for block in BENCH_BLOCKS if "--quick" in block]
    command = shlex.split(first.replace(ADDRESS, server.base_url))
    assert command.pop(0) == "batchclient"
    shorter = ["--for", "0.2", "--warm-up", "0.1", "--output-tokens", "4", "--concurrency", "8"]
    done = cli(*command, *shorter, "--json", tmp_path / "r.json")
    assert done.exit_code == 0, done.stderr
    # On a busy machine every cell may have measured the client, and the answer says so.
    assert "suggested: BatchClient(…" in done.stdout or "too busy to measure the server" in done.stdout
    told = json.loads((tmp_path / "r.json").read_text())
    of_bench = section("## `batchclient bench`")
    measured = told["measurements"][0]
    assert "help(batchclient.bench.Measurement)" in of_bench
    assert {field.name for field in fields(Measurement)} >= measured.keys()
    assert all(re.search(rf"\b{name}\b", Measurement.__doc__ or "") for name in measured)
    assert {field.name for field in fields(Setting)} == measured["setting"].keys()
    for name in told:
        assert f"`{name}`" in of_bench


def test_the_commands_of_the_page_about_measuring_are_right(cli, tmp_path, monkeypatch):
    """Up to the server, which is not there; ``compare`` has no reports."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("in.jsonl"), [{"text": "a fine day"}])
    for block in BENCH_BLOCKS:
        command = shlex.split(block.replace("\\\n", "").replace(ADDRESS, "http://127.0.0.1:9/v1"))[1:]
        told = cli(*command)
        assert "before.json: No such file" in told.stderr if "compare" in command else told.exit_code == 5, told.stderr


# Redis -----------------------------------------------------------------------------------------------------------------


def test_the_names_for_python():
    module = pytest.importorskip("batchclient.integrations.redis")
    *_, paragraph = section("## `batchclient work`").strip().split("\n\n")
    assert set(re.findall(r"`(\w+)`", paragraph)) - {"decode_responses"} == set(module.__all__)
