"""The package's metadata and the files around it: licence, versions, facts that the owner gives.

``make release-check`` builds the archives and installs them.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from scripts import _release

import batchclient

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
HATCH = PYPROJECT["tool"]["hatch"]["build"]["targets"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PAGES = ["SECURITY.md", "CONTRIBUTING.md"]
APACHE_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""Of https://www.apache.org/licenses/LICENSE-2.0.txt, as pip's packages and Debian have it."""
AUTHORS = "The batchclient authors"

KNOWN_TO_BE_MISSING = {
    "urls": "no public repository yet",
    "readme": "links are made absolute once there is a URL to make them of",
    "security": "no public place for reports yet",
    "email": "the owner has given no address",
}
"""Facts that only the owner can give. Once a fact is given, its line here goes."""


@pytest.mark.parametrize(
    "fact",
    [pytest.param(fact, marks=pytest.mark.xfail(strict=True, reason=why)) for fact, why in KNOWN_TO_BE_MISSING.items()],
)
def test_the_owner_has_given(fact: str) -> None:
    assert _release.missing().get(fact) is None


def test_nothing_else_is_missing() -> None:
    assert _release.missing().keys() <= KNOWN_TO_BE_MISSING.keys()


def test_the_licence_is_apaches_text_with_our_name() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.count(f"Copyright 2026 {AUTHORS}\n") == 1
    original = text.replace(f"2026 {AUTHORS}", "[yyyy] [name of copyright owner]")
    assert hashlib.sha256(original.encode()).hexdigest() == APACHE_SHA256


def test_the_licence_is_an_expression_and_no_classifier() -> None:
    # PEP 639: both together are refused.
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License ::")]


def test_the_classifiers_are_the_versions_that_make_takes() -> None:
    versions = [
        each.removeprefix("Programming Language :: Python :: ")
        for each in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)
    ]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"
    assert "batchclient needs Python 3.11 to 3.13" in MAKEFILE
    assert "Operating System :: POSIX :: Linux" in PROJECT["classifiers"]


def test_names_are_the_owners() -> None:
    assert PROJECT["authors"] == [{"name": AUTHORS}]
    assert "maintainers" not in PROJECT


def test_the_extras_are_those_that_are_documented() -> None:
    extras = {"aiohttp", "cli", "httpx2", "otel", "prometheus", "redis"}
    assert PROJECT["optional-dependencies"].keys() == extras
    checked = re.search(r"for extra in none (.*); do", (ROOT / "scripts/release_check.sh").read_text("utf-8"))
    assert checked
    assert set(checked.group(1).split()) == PROJECT["optional-dependencies"].keys()


def test_metadata_is_pinned_and_every_pattern_begins_at_the_root() -> None:
    assert {target["core-metadata-version"] for target in HATCH.values()} == {_release.METADATA_VERSION}
    assert HATCH.keys() == {"wheel", "sdist"}
    assert [pattern for pattern in HATCH["sdist"]["include"] if not pattern.startswith("/")] == []


def test_the_version_is_one() -> None:
    heading = _release.first_heading((ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert PROJECT["version"] == batchclient.__version__ == _release.version_in_source()
    assert heading == "Unreleased" or re.fullmatch(
        rf"{re.escape(PROJECT['version'])} \((\d{{4}}-\d{{2}}-\d{{2}}|not yet published)\)", heading
    )
    labels = dict(re.findall(r'image\.(\w+)="([^"]+)"', (ROOT / "examples/kubernetes/Dockerfile").read_text("utf-8")))
    assert labels == {"version": PROJECT["version"], "licenses": PROJECT["license"]}


def test_the_archives_have_what_belongs_there(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    [sdist] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert _release.archive_problems(Path(wheel), Path(sdist), [str(ROOT)]) == []
    # A path of the machine would be found in both.
    found = _release.archive_problems(Path(wheel), Path(sdist), ["an async client for self-hosted"])
    assert {problem.split(":")[0] for problem in found} == {Path(wheel).name, Path(sdist).name}


def test_contents_that_do_not_belong_are_found() -> None:
    names = ["p/__init__.py", "p/tests/test_it.py", "p/picture.png"]
    assert _release.contents_problems(names, ["p/__init__.py", "p/py.typed"], ["tests"]) == [
        "p/py.typed is missing",
        "p/picture.png does not belong there",
        "p/tests/test_it.py does not belong there",
        "p/tests/test_it.py is no part of the package",
    ]


def test_another_metadata_version_licence_or_description_is_found() -> None:
    problems = _release.metadata_problems(b"Metadata-Version: 2.5\nLicense-Expression: MIT\n\nother\n")
    assert {"Metadata-Version is '2.5', not '2.4'", "License-Expression is 'MIT', not 'Apache-2.0'"} <= set(problems)
    assert "the description is not the README" in problems


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("[a](docs/a.md) and [b](https://b.example/) and [c](#c)", ["docs/a.md"]),
        ('<img src="a.png">', ['<img src="a.png">']),
        ("<!-- measured --> `<b>`\n```html\n<p>\n```\n", []),
        ('![a picture](docs/a.png "title")', ["docs/a.png"]),
    ],
)
def test_links_that_an_index_breaks_are_found(page: str, found: list[str]) -> None:
    assert _release.links_that_an_index_breaks(page) == found


def test_a_version_that_is_not_ready_says_why() -> None:
    problems = _release.ready_problems("9.9.9")
    assert f"pyproject.toml has {PROJECT['version']}, not 9.9.9" in problems
    assert any("changelog" in problem for problem in problems)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_invents_no_address_url_or_promise_of_time(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert not re.search(r"https?://|[\w.]+@[\w.]+\.\w+", text)
    assert not re.search(r"\bwithin \d|\b\d+ (?:hours|days|weeks)\b", text)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_resolve(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", (ROOT / page).read_text("utf-8")):
        assert (ROOT / target).is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / target).read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings], anchor


def test_contributing_names_targets_and_layers_as_they_are() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", text, re.MULTILINE))
    assert len(named) >= 8
    assert named <= targets
    assert "about five minutes" in MAKEFILE
    assert "| about five minutes |" in text
    contract = PYPROJECT["tool"]["importlinter"]["contracts"][0]
    rows = [sorted(layer.replace("batchclient.", "").split(" | ")) for layer in contract["layers"]]
    table = text.split("| layer | contents |", 1)[1].split("\n\n", 1)[0]
    assert [sorted(re.findall(r"`(\w+)`", line.split("|")[1])) for line in table.splitlines()[2:]] == rows


def test_security_names_the_versions_and_both_lists() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    headings = ["Versions that get fixes", "How to report", "What counts", "What does not count"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == headings
    assert ".".join(PROJECT["version"].split(".")[:2]) in text
