"""The site, by Sphinx: ``make docs`` builds ``build/site``.

Rules:
- Pages are plain Markdown, as a forge shows it. What the site needs besides stands here and in
  ``index.md``.
- Links out of ``docs`` lead to the repository, or are plain text while ``pyproject.toml`` has none.
- A page that ``moved.toml`` names, or its section, leads to the place of its text.
"""

import inspect
import json
import re
import tomllib
import warnings
from collections import defaultdict
from pathlib import Path

from sphinx.deprecation import RemovedInSphinx10Warning

import batchclient

DOCS = Path(__file__).parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository")
"""Where links to examples, benchmarks and tests lead; plain text as long as there is none."""
LINK = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)+[^)\s]*)\)")
REDIRECT = """<!doctype html><meta charset="utf-8"><title>Moved</title><link rel="canonical" href="{page}">
<noscript><meta http-equiv="refresh" content="0; url={page}"></noscript>
<script>location.replace({sections}[location.hash] ?? {page_json} + location.hash)</script>
<a href="{page}">The page was moved.</a>
"""

project, author, copyright = "batchclient", PROJECT["authors"][0]["name"], PROJECT["authors"][0]["name"]
version = release = PROJECT["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_autodoc_typehints"]
exclude_patterns = ["README.md"]  # index.md includes it
html_theme = "furo"
html_title = f"batchclient {version}"
html_static_path = ["images", "reports"]

myst_heading_anchors = 4
napoleon_custom_sections = [("Cancellation", "params_style"), ("Wire", "params_style")]
add_module_names = False
OTHERS = "Exception dict list tuple str AsyncOpenAI OpenAI _UnixSelectorEventLoop AsyncBaseTransport BaseTransport"
"""Classes whose members are not shown as those of our classes."""
autodoc_default_options = {"members": True, "inherited-members": OTHERS.replace(" ", ",")}
autodoc_member_order = "bysource"
napoleon_use_ivar = True
suppress_warnings = [
    "misc.highlighting_failure",  # metrics with a colon are no PromQL to the highlighter
    "sphinx_autodoc_typehints.forward_reference",  # a name within an alias is shown as it stands
]
warnings.simplefilter("ignore", RemovedInSphinx10Warning)  # of sphinx_autodoc_typehints

TOLD: dict[int, str] = {}
"""By id of a class or function: the first module of the page that has it."""

for name in batchclient.__all__:
    getattr(batchclient, name)  # autodoc finds the names that are imported when first asked for


def read(page: Path, source: list[str]) -> None:
    """Let a page's links out of ``docs`` lead to the repository, or be plain text."""

    def one(link: re.Match[str]) -> str:
        path, _, section = link[2].partition("#")
        target = (page.parent / path).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        url = f"{REPOSITORY}/blob/main/{target.relative_to(DOCS.parent)}"
        return f"[{link[1]}]({url}#{section})" if REPOSITORY else link[1]

    source[0] = LINK.sub(one, source[0])


def first_paragraph(app, what: str, name: str, obj: object, options, lines: list[str]) -> None:
    """Show of a module's docstring what it is for, not how it is made."""
    if what == "module" and "" in lines:
        del lines[lines.index("") :]


def told_before(app, what: str, name: str, obj: object, skip: bool, options) -> bool | None:
    """Leave a module's name out that a module before it on the page has, too."""
    if what != "module" or skip or not (inspect.isroutine(obj) or inspect.isclass(obj)):
        return None
    return TOLD.setdefault(id(obj), app.env.temp_data["autodoc:module"]) != app.env.temp_data["autodoc:module"]


def by_public_name(app, env, node, shown):
    """Link a class that an annotation names by the module that defines it."""
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("batchclient."):
        return None
    public = "batchclient." + node["reftarget"].rpartition(".")[2]
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, node["reftype"], public, node, shown)


def redirect(app, error) -> None:
    """Write a page in each place that ``moved.toml`` names, which leads to where its text is now."""
    old_pages: dict[str, dict[str, str]] = defaultdict(dict)
    for old, new in tomllib.loads((DOCS / "moved.toml").read_text()).items():
        page, _, section = old.partition("#")
        up = "../" * page.count("/")
        old_pages[page]["#" + section if section else ""] = up + new.replace(".md", ".html")
    for page, sections in {} if error else old_pages.items():
        file = Path(app.outdir, page).with_suffix(".html")
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = sections.pop("")
        file.write_text(REDIRECT.format(page=whole, page_json=json.dumps(whole), sections=json.dumps(sections)))


def setup(app) -> None:
    app.connect("source-read", lambda _app, docname, source: read(DOCS / docname, source))
    app.connect("include-read", lambda _app, path, _docname, source: read(DOCS / path, source))
    app.connect("autodoc-process-docstring", first_paragraph)
    app.connect("autodoc-skip-member", told_before)
    app.connect("missing-reference", by_public_name)
    app.connect("build-finished", redirect)
