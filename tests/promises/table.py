"""The promises, an area of the package each file: what is promised, the test that keeps it, and changes that break it.

    [[promise]]
    says = "A call out of patience fails with the servers' last failure"
    test = "playbook/test_outages.py::test_at_the_end_of_patience_all_calls_fail"
    file = "_core/servers/outage.py"
    old = 'late.append(request)'
    new = 'pass'

``test`` is below ``tests``, ``file`` below ``src/batchclient``. A test may end with a case of its table,
``…::test_it[a case]``. ``old`` stands in the file once. ``new`` may be a list of texts: the test notices each
of them, such as a number that is ten times as large, and half as large.
"""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
AREAS = {
    "core": ("_core/",),
    "wire": ("dialects/", "transport/"),
    "maps": ("_maps/", "maps.py", "partition.py", "templates.py"),
    "jobs": ("jobs/", "journal/"),
    "command": ("cli/", "__main__.py"),
    "tools": ("integrations/", "bench/", "_telemetry/", "_metrics/", "_doctor/"),
    "testing": ("testing/", "simulator/", "../pytest_batchclient/", "../../tests/guises/"),
    "face": ("",),
}
"""Each area's modules; a module is of the first area that fits."""


def area_of(file):
    """The area of a file below ``src/batchclient``."""
    return next(area for area, beginnings in AREAS.items() if file.startswith(beginnings))


class Promise(NamedTuple):
    says: str
    test: str
    file: str
    old: str
    new: str | list[str]

    @property
    def node(self):
        """The test's name for pytest, below the project's root."""
        return f"tests/{self.test}"

    @property
    def breaks(self):
        """The texts that take the place of ``old``."""
        return [self.new] if isinstance(self.new, str) else self.new

    def read(self, root):
        """The module's path, and its text; ValueError where the promise does not fit it."""
        path = root / "src" / "batchclient" / self.file
        text = path.read_text() if path.is_file() else ""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        return path, text


def promises(areas=tuple(AREAS)):
    """Those of these areas."""
    files = [FOLDER / f"{area}.toml" for area in areas]
    return [Promise(**fields) for file in files for fields in tomllib.loads(file.read_text())["promise"]]


def faults(table):
    """What does not fit the tree, in a sentence for each."""
    for promise in table:
        try:
            promise.read(ROOT)
        except ValueError as error:
            yield f"{promise.says!r}: {error}"
        file, _, test = promise.node.partition("::")
        test, _, case = test.partition("[")
        if not (ROOT / file).is_file() or not re.search(rf"(?m)^(async )?def {test}\(", (ROOT / file).read_text()):
            yield f"{promise.says!r}: there is no test {promise.test}"
        elif case and not any(f'"{case[:-1]}"' in table.read_text() for table in (ROOT / file).parent.rglob("*.py")):
            yield f"{promise.says!r}: no table beside the test has its case {case[:-1]!r}"
