"""Put the tables of ``results/*.md`` between their markers in ``docs/guide/figures.md``.

    python benchmarks/report.py

All other text of the page is written by hand, and so are README's figures, which a test compares.
"""

import re

from _common import HERE, merged, section_text

PAGE = HERE.parent / "docs/guide/figures.md"


def main() -> None:
    page = PAGE.read_text()
    for name in re.findall(r"^<!-- results:(\w+) -->$", page, re.MULTILINE):
        page = merged(page, name, section_text(name))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
