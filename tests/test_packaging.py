"""The package's metadata and the files around it: licence, versions, facts that the owner gives.

``make release-check`` builds the archives, has them checked by the packaging libraries, and installs them.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import tomllib
import zipfile
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
PAGES = ["SECURITY.md", "CONTRIBUTING.md", "tests/README.md"]
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
    broken = _release.links_that_an_index_breaks
    assert broken("[a](docs/a.md) [b](https://b.example/) [c](#c) ![d](d.png)") == ["docs/a.md", "d.png"]
    assert broken('<img src="a.png">') == ['<img src="a.png">']
    assert broken("<!-- measured --> `<b>`\n```html\n<p>\n```\n") == []


def test_the_licence_is_apaches_text_with_our_name() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.count(f"Copyright 2026 {AUTHORS}\n") == 1
    original = text.replace(f"2026 {AUTHORS}", "[yyyy] [name of copyright owner]")
    assert hashlib.sha256(original.encode()).hexdigest() == APACHE_SHA256
    # PEP 639: an expression and a classifier together are refused.
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert not [each for each in PROJECT["classifiers"] if each.startswith("License ::")]
    assert PROJECT["authors"] == [{"name": AUTHORS}]


def test_the_classifiers_are_the_versions_that_make_takes() -> None:
    versions = re.findall(r"Programming Language :: Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == ">=3.11"
    assert "batchclient needs Python 3.11 to 3.14" in MAKEFILE
    assert "Operating System :: POSIX :: Linux" in PROJECT["classifiers"]


def test_the_extras_are_those_that_are_checked() -> None:
    checked = re.search(r"for extra in none (.*); do", (ROOT / "scripts/release_check.sh").read_text("utf-8"))
    assert checked
    assert set(checked.group(1).split()) == PROJECT["optional-dependencies"].keys()


def test_metadata_is_pinned_and_every_pattern_begins_at_the_root() -> None:
    assert {target["core-metadata-version"] for target in HATCH.values()} == {"2.4"}
    assert HATCH.keys() == {"wheel", "sdist"}
    assert [pattern for pattern in HATCH["sdist"]["include"] if not pattern.startswith("/")] == []


def test_the_version_is_one() -> None:
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heading
    assert PROJECT["version"] == batchclient.__version__ == _release.versions()["batchclient.__version__"]
    assert heading[1] == "Unreleased" or re.fullmatch(
        rf"{re.escape(PROJECT['version'])} \((\d{{4}}-\d{{2}}-\d{{2}}|not yet published)\)", heading[1]
    )
    labels = dict(re.findall(r'image\.(\w+)="([^"]+)"', (ROOT / "examples/kubernetes/Dockerfile").read_text("utf-8")))
    assert labels == {"version": PROJECT["version"], "licenses": PROJECT["license"]}


def test_a_version_that_is_not_ready_says_why() -> None:
    problems = _release.problems("9.9.9")
    assert f"pyproject.toml has {PROJECT['version']}, not 9.9.9" in problems
    assert any("changelog" in problem for problem in problems)


def test_the_archives_have_what_belongs_there(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    [sdist] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    stem = f"batchclient-{PROJECT['version']}"
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in source} == {".lua", ".py", ".toml", ".typed"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if not name.startswith(f"{stem}.dist-info/")} == source
    assert f"{stem}.dist-info/licenses/LICENSE" in names
    beside = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
    with tarfile.open(sdist) as archive:
        assert {name.removeprefix(f"{stem}/") for name in archive.getnames()} == {
            f"src/{each}" for each in source
        } | beside


@pytest.mark.parametrize("page", PAGES)
def test_a_page_invents_no_address_url_or_promise_of_time(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert not re.search(r"https?://|[\w.]+@[\w.]+\.\w+", text)
    assert not re.search(r"\bwithin \d|\b\d+ (?:hours|days|weeks)\b", text)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_resolve(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", (ROOT / page).read_text("utf-8")):
        linked = (ROOT / page).parent / target
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings], anchor


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "tests/README.md"])
def test_a_page_names_targets_that_are_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"(?:`|^|=\S+ )make ([a-z0-9-]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE))
    assert named and named <= targets


def test_security_names_the_versions_and_both_lists() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    headings = ["Versions that get fixes", "How to report", "What counts", "What does not count"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == headings
    assert ".".join(PROJECT["version"].split(".")[:2]) in text
