"""The checks of a release's archives and of the files around them.

    python scripts/_release.py archives FOLDER [PATH …]    # of FOLDER's archives; none holds a PATH
    python scripts/_release.py missing                     # facts that the owner has not given yet
    python scripts/_release.py ready VERSION               # whether VERSION may be uploaded

``release_check.sh`` runs the commands, and the tests import the module. A command prints a line per
problem, and its exit status is then 1; ``missing`` only tells.
"""

from __future__ import annotations

import configparser
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "METADATA_VERSION",
    "archive_problems",
    "contents_problems",
    "first_heading",
    "links_that_an_index_breaks",
    "metadata_problems",
    "missing",
    "project",
    "ready_problems",
    "version_in_source",
]

ROOT = Path(__file__).resolve().parents[1]
METADATA_VERSION = "2.4"
"""The newest that indexes and uploaders take; 2.5 is refused by some (twine #1255, #1284)."""
BESIDE_THE_SOURCE = frozenset({"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"})
"""Files of the source archive that the tree has and that are no source."""
MADE_BY_HATCHLING = frozenset({"PKG-INFO", ".gitignore"})
"""Files of the source archive that hatchling adds; a build from the archive reads both."""
SUFFIXES = frozenset({".py", ".typed"})
"""Of the wheel's files beside its metadata: no picture, cache, configuration or result."""
NOT_SHIPPED = frozenset({"tests", "benchmarks", "examples", "docs", "scripts", "__pycache__"})
NOT_NEEDED = frozenset({"email"})
"""Of the facts that may be missing, those that an index does not ask for."""

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_RAW_HTML = re.compile(r"</?[A-Za-z][^>\n]*>")
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
_ELSEWHERE = re.compile(r"https://|#")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(\S+) \((\d{4}-\d{2}-\d{2})\)")


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the table ``[project]`` of ``pyproject.toml``."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def version_in_source(root: Path = ROOT) -> str:
    """Return ``batchclient.__version__`` as the source has it, without an import."""
    source = (root / "src/batchclient/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if not found:
        raise ValueError("src/batchclient/__init__.py has no line __version__ = …")
    return found.group(1)


def first_heading(changelog: str) -> str:
    """Return the first heading of level two, such as ``Unreleased`` or ``0.1.0 (2026-01-31)``."""
    found = _HEADING.search(changelog)
    return found.group(1).strip() if found else ""


def links_that_an_index_breaks(page: str) -> list[str]:
    """Return raw HTML and relative links' targets, which an index shows differently.

    Comments are not shown anywhere, and links to a heading of the page hold.
    """
    prose = _CODE.sub("", _COMMENT.sub("", _FENCED.sub("", page)))
    return _RAW_HTML.findall(prose) + [link for link in _LINK.findall(prose) if not _ELSEWHERE.match(link)]


def missing(root: Path = ROOT) -> dict[str, str]:
    """Return the facts that only the owner can give and has not given, by name.

    A value says where the fact is missing.
    """
    table = project(root)
    found = {}
    if not table.get("urls"):
        found["urls"] = "pyproject.toml has no [project.urls]: the repository and the documentation have no public URL"
    links = links_that_an_index_breaks((root / "README.md").read_text("utf-8"))
    if links:
        found["readme"] = f"README.md has {len(links)} links that an index cannot resolve; absolute ones need a URL"
    if "No public place for reports exists yet" in (root / "SECURITY.md").read_text("utf-8"):
        found["security"] = "SECURITY.md names no place for reports"
    if not any("email" in author for author in table["authors"]):
        found["email"] = "pyproject.toml names no address of the authors; indexes show none then"
    return found


def metadata_problems(metadata: bytes, root: Path = ROOT) -> list[str]:
    """Compare core metadata with ``pyproject.toml``, the README, the changelog and the source."""
    table, read = project(root), message_from_bytes(metadata)
    wanted: dict[str, object] = {
        "Metadata-Version": METADATA_VERSION,
        "Name": table["name"],
        "Version": table["version"],
        "Summary": table["description"],
        "Author": ", ".join(author["name"] for author in table["authors"]),
        "License-Expression": table["license"],
        "Requires-Python": table["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    problems = [f"{name} is {read[name]!r}, not {value!r}" for name, value in wanted.items() if read[name] != value]
    extras = table["optional-dependencies"]
    many: dict[str, Iterable[str]] = {
        "License-File": table["license-files"],
        "Classifier": table["classifiers"],
        "Provides-Extra": extras,
        "Project-URL": [f"{label}, {url}" for label, url in table.get("urls", {}).items()],
    }
    for name, values in many.items():
        if sorted(read.get_all(name, [])) != sorted(values):
            problems.append(f"{name} is {sorted(read.get_all(name, []))}, not {sorted(values)}")
    count = len(table["dependencies"]) + sum(map(len, extras.values()))
    if len(read.get_all("Requires-Dist", [])) != count:
        problems.append(f"Requires-Dist is there {len(read.get_all('Requires-Dist', []))} times, not {count}")
    if version_in_source(root) != read["Version"]:
        problems.append(f"batchclient.__version__ is {version_in_source(root)}, the metadata's {read['Version']}")
    if _body(read).strip() != (root / "README.md").read_text("utf-8").strip():
        problems.append("the description is not the README")
    return problems


def _body(message: Message) -> str:
    body = message.get_payload(decode=True)
    return body.decode("utf-8") if isinstance(body, bytes) else str(body)


def contents_problems(names: Iterable[str], wanted: Iterable[str], forbidden: Iterable[str] = ()) -> list[str]:
    """Compare the files of an archive with those that belong there.

    ``forbidden`` names folders that belong in no archive.
    """
    names, wanted, forbidden = set(names), set(wanted), set(forbidden)
    problems = [f"{name} is missing" for name in sorted(wanted - names)]
    problems += [f"{name} does not belong there" for name in sorted(names - wanted)]
    return problems + [
        f"{name} is no part of the package"
        for name in sorted(names)
        if forbidden & set(PurePosixPath(name).parts) or PurePosixPath(name).name.startswith(("test_", "conftest"))
    ]


def archive_problems(wheel: Path, sdist: Path, paths: Iterable[str] = (), root: Path = ROOT) -> list[str]:
    """Read both archives back: metadata, files, entry points, no path of the building machine.

    Args:
        wheel: the wheel.
        sdist: the source archive.
        paths: texts that must not occur in any file, such as the folder of the build.
        root: the tree that the archives were made of.
    """
    table = project(root)
    stem = f"{table['name']}-{table['version']}"
    sources = _sources(root)
    source = {name.removeprefix("src/") for name in sources}
    info = f"{stem}.dist-info"
    files = _of_wheel(wheel)
    made = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    problems = contents_problems(files, source | made, NOT_SHIPPED)
    problems += [
        f"{name} has a suffix that no file of the package has"
        for name in sorted(files.keys() - made)
        if PurePosixPath(name).suffix not in SUFFIXES
    ]
    problems += [
        f"{package}/py.typed is missing"
        for package in sorted({name.split("/")[0] for name in source})
        if f"{package}/py.typed" not in files
    ]
    problems += metadata_problems(files.get(f"{info}/METADATA", b""), root)
    problems += _licence_problems(files.get(f"{info}/licenses/LICENSE", b""), root)
    problems += _entry_point_problems(files, f"{info}/entry_points.txt", table)
    problems = [f"{wheel.name}: {problem}" for problem in problems + _path_problems(files, paths)]

    files = _of_sdist(sdist, stem)
    found = contents_problems(files, sources | BESIDE_THE_SOURCE | MADE_BY_HATCHLING, NOT_SHIPPED)
    found += metadata_problems(files.get("PKG-INFO", b""), root)
    found += _licence_problems(files.get("LICENSE", b""), root)
    return problems + [f"{sdist.name}: {problem}" for problem in found + _path_problems(files, paths)]


def _sources(root: Path) -> set[str]:
    # Of a clean clone these are the tracked files.
    files = (path for path in (root / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix() for path in files}


def _of_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _of_sdist(sdist: Path, stem: str) -> dict[str, bytes]:
    files = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            opened = archive.extractfile(member)
            files[member.name.removeprefix(f"{stem}/")] = opened.read() if opened else b""
    return files


def _licence_problems(text: bytes, root: Path) -> list[str]:
    return [] if text == (root / "LICENSE").read_bytes() else ["LICENSE is not the tree's"]


def _entry_point_problems(files: Mapping[str, bytes], name: str, table: Mapping[str, Any]) -> list[str]:
    parser = configparser.ConfigParser(delimiters=["="])
    parser.read_string(files.get(name, b"").decode("utf-8"))
    read = {section: dict(parser[section]) for section in parser.sections()}
    wanted = {"console_scripts": table["scripts"], **table["entry-points"]}
    return [] if read == wanted else [f"entry points are {read}, not {wanted}"]


def _path_problems(files: Mapping[str, bytes], paths: Iterable[str]) -> list[str]:
    return [
        f"{name} holds a path of this machine: {path}"
        for path in paths
        for name, content in sorted(files.items())
        if path.encode() in content
    ]


def ready_problems(version: str, root: Path = ROOT) -> list[str]:
    """Return the reasons against an upload of a version: numbers differ, or a fact is missing."""
    heading = first_heading((root / "CHANGELOG.md").read_text("utf-8"))
    released = _RELEASED.fullmatch(heading)
    problems = [
        f"{place} has {found}, not {version}"
        for place, found in [
            ("pyproject.toml", project(root)["version"]),
            ("batchclient.__version__", version_in_source(root)),
            ("the changelog's first heading", released.group(1) if released else heading),
        ]
        if found != version
    ]
    if heading == version:
        problems.append(f"the changelog's first heading has no date: ## {version} (YYYY-MM-DD)")
    return problems + [said for name, said in missing(root).items() if name not in NOT_NEEDED]


def main(arguments: list[str]) -> int:
    """Run a command."""
    match arguments:
        case ["archives", folder, *paths]:
            [wheel], [sdist] = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
            problems = archive_problems(wheel, sdist, paths)
        case ["missing"]:
            print(*missing().values(), sep="\n")
            return 0
        case ["ready", version]:
            problems = ready_problems(version)
        case _:
            raise SystemExit(__doc__)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
