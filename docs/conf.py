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
import sys
import tomllib
import warnings
from collections import defaultdict
from pathlib import Path

from sphinx.deprecation import RemovedInSphinx10Warning

import batchclient
import batchclient.testing

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
TO_A_NAME = """<script>
const pages = PAGES, parts = location.hash.slice(1).replace(/^module-/, "").split(".");
while (parts.length && !pages[parts.join(".")]) parts.pop();
if (parts.length) location.replace(pages[parts.join(".")] + location.hash);
</script>
"""
MEMBERS = {"attribute", "method", "property"}

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
OTHERS = (
    "BatchClientError Exception BaseException dict list tuple str AsyncOpenAI OpenAI _UnixSelectorEventLoop "
    "AsyncBaseTransport BaseTransport"
)
"""Classes whose members are not shown as those of the classes that inherit them."""
autodoc_default_options = {"members": True, "inherited-members": OTHERS.replace(" ", ",")}
autodoc_member_order = "bysource"
napoleon_use_ivar = True
suppress_warnings = [
    "misc.highlighting_failure",  # metrics with a colon are no PromQL to the highlighter
    "sphinx_autodoc_typehints.forward_reference",  # a name within an alias is shown as it stands
]
warnings.simplefilter("ignore", RemovedInSphinx10Warning)  # of sphinx_autodoc_typehints

FIRST = ("batchclient", "batchclient.testing")
"""Modules whose names are not shown again under other modules that have them."""

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


def no_type(app, what: str, name: str, obj: object, options, lines: list[str]) -> None:
    """Keep napoleon from taking the text before an attribute's first colon for its type."""
    if what in {"attribute", "data", "property"}:
        lines.insert(0, "\\ ")


def told_elsewhere(app, what: str, name: str, obj: object, skip: bool, options) -> bool | None:
    """Leave out what another module shows, and fields of a named tuple: its docstring tells them."""
    if skip or (inspect.getdoc(obj) or "").startswith("Alias for field number"):
        return True
    if what != "module" or not (inspect.isroutine(obj) or inspect.isclass(obj)):
        return None
    here = app.env.temp_data["autodoc:module"]
    return any(getattr(sys.modules[first], name, None) is obj for first in FIRST if first != here) or None


def by_public_name(app, env, node, shown):
    """Link a class that an annotation names by the module that defines it."""
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("batchclient."):
        return None
    public = "batchclient." + node["reftarget"].rpartition(".")[2]
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, node["reftype"], public, node, shown)


def from_one_page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Let an anchor of ``api.html``, which once had all names, lead to the name's page."""
    if pagename != "reference/api":
        return
    domain = app.env.get_domain("py")
    shown = [(name, each.docname) for name, each in domain.objects.items() if each.objtype not in MEMBERS]
    pages = {name: page.removeprefix("reference/") + ".html" for name, page in shown}
    context["body"] += TO_A_NAME.replace("PAGES", json.dumps(pages))


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
    app.connect("autodoc-process-docstring", no_type, priority=400)  # napoleon has 500
    app.connect("autodoc-skip-member", told_elsewhere)
    app.connect("missing-reference", by_public_name)
    app.connect("html-page-context", from_one_page)
    app.connect("build-finished", redirect)
