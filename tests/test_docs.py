"""The README and the docs do as they say.

Rules:
- A block of ``python`` that ends with ``asyncio.run(main())`` is a program: it runs as a file.
- The other blocks of a page run in order, as ``python -m asyncio`` runs pasted blocks. So a block has
  no blank line within a function or a ``with``, and one after it.
- Each block imports the names that it uses.
- A page whose blocks need a server names one before the first of them.
- Blocks of ``py`` need further packages: ``tests/integrations/test_pages.py`` runs them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.core import BatchingNumbers
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
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient._settings import PRESETS, Sending, Settings
from batchclient.simulator import EmbeddedServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PAGES = [
    ROOT / f"{each}.md" for each in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "examples/README", "tests/README")
]
OTHER_PAGES += sorted((ROOT / "benchmarks").rglob("*.md"))
"""Their links are checked as well, and nothing else."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES_OF_TESTS = [ROOT / "docs/guide/testing.md"]
"""Their blocks are tests; tests/testing/test_page.py runs them."""
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


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[str]:
    return [block for block in BLOCK.findall(page.read_text()) if block.endswith("asyncio.run(main())\n")]


def pasted(page: Path) -> list[str]:
    return [block for block in BLOCK.findall(page.read_text()) if not block.endswith("asyncio.run(main())\n")]


OTHERS = [page for page in PAGES if page not in PAGES_OF_TESTS]


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


def test_the_pages_of_public_names_have_exactly_the_modules_of_the_snapshot() -> None:
    shown = re.findall(r"^\.\. automodule:: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(MODULES)
    table = (ROOT / "docs/reference/public.md").read_text()
    told = re.findall(r"`(batchclient[\w.]*|\.\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(f"batchclient.integrations{each}" if each[0] == "." else each for each in told) == sorted(MODULES)


def test_the_page_on_settings_shows_the_presets_as_they_are() -> None:
    lines = (ROOT / "docs/guide/settings.md").read_text().splitlines()
    fixed = {"refill_s": "freed permits", "refill_ratio": "to grant this share", "starvation_s": "then nothing younger"}
    for field in BatchingNumbers.__annotations__:
        row = next(line for line in lines if line.startswith(f"| {fixed.get(field, f'`Batching({field}=…)`')}"))
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
        told = re.fullmatch(r"([\d,]+ \w+) of ([\d,]+) tokens?, (?:model of )?([\d.]+ B)( \(it loses\))?", job)
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
        theirs, engine = row[3].partition(" ")[0], row[5].partition(", ")[2] or "not measured"
        assert cells == [row[2], theirs, engine, str(runs), commit], job
        assert bool(loses) == (row[4] < "1"), job


def test_each_rate_of_the_readme_is_that_of_the_results() -> None:
    """``rows/s`` has the rate at a server that answers at once, and in brackets the one on vLLM."""
    readme = (ROOT / "README.md").read_text()
    shown = cells_of(readme[readme.index("| tool |") :])
    compared = 0
    for name, tool in {"batch_files": r"[^(]*", "batch_files_vllm": r"\(.*\)"}.items():
        for row in cells_of((ROOT / f"benchmarks/results/{name}.md").read_text()):
            (cell,) = [each[2] for each in shown if each[0].strip("`")[:8] == row[0].strip("`")[:8]]
            part = re.search(tool, cell)
            measured = re.findall(r"[\d,]+", re.sub(r"\(.*?\)", "", row[1]))
            assert part and re.findall(r"[\d,]*\d", part[0]) == measured, (row[0], cell)
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
