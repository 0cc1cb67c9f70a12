"""What an upload needs and no library checks: facts that only the owner can give, and one version everywhere.

python scripts/_release.py            # say what is missing
python scripts/_release.py VERSION    # exit status 1 where VERSION may not be uploaded yet
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOT_NEEDED = frozenset({"email"})
"""Of the facts that may be missing, those that an index does not ask for."""


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def project() -> dict[str, Any]:
    """Return the table ``[project]`` of ``pyproject.toml``."""
    table: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return table


def links_that_an_index_breaks(page: str) -> list[str]:
    """Return raw HTML and the targets of relative links; comments are not shown anywhere."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"</?[A-Za-z][^>\n]*>", prose) + re.findall(r"\]\((?!https://|#)([^)\s]+)", prose)


def missing() -> dict[str, str]:
    """Return the facts that only the owner can give and has not given: by name, where each is missing."""
    table, links = project(), links_that_an_index_breaks(read("README.md"))
    facts = {
        "urls": (not table.get("urls"), "pyproject.toml has no [project.urls]"),
        "readme": (links, f"README.md has {len(links)} links that an index cannot resolve"),
        "security": ("No public place for reports" in read("SECURITY.md"), "SECURITY.md names no place for reports"),
        "email": (not any("email" in author for author in table["authors"]), "pyproject.toml names no address"),
    }
    return {name: said for name, (is_missing, said) in facts.items() if is_missing}


def versions() -> dict[str, str]:
    """Return the version by each place that has it."""
    source = re.search(r'^__version__ = "([^"]+)"$', read("src/batchclient/_version.py"), re.MULTILINE)
    heading = re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$|^## (.+)$", read("CHANGELOG.md"), re.MULTILINE)
    return {
        "pyproject.toml": project()["version"],
        "batchclient.__version__": source[1] if source else "none",
        "the changelog's first heading": (heading[1] or heading[2]) if heading else "none",
    }


def problems(version: str) -> list[str]:
    """Return the reasons against an upload of a version."""
    found = [f"{place} has {value}, not {version}" for place, value in versions().items() if value != version]
    return found + [said for name, said in missing().items() if name not in NOT_NEEDED]


if __name__ == "__main__":
    told = problems(sys.argv[1]) if sys.argv[1:] else list(missing().values())
    print(*told, sep="\n")
    sys.exit(1 if sys.argv[1:] and told else 0)
