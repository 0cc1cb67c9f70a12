"""Tables and paragraphs of a page as HTML; every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["STYLE", "Text", "box", "definitions", "figure", "page", "paragraph", "section", "table"]

Text = str | tuple[str, str]
"""A text of a table; two texts: the second is drawn small."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #111; background: #fff;
  max-width: 960px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid #bbb; padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
.small, caption, figcaption { color: #444; font-size: .87rem; }
.answer { border-left: 4px solid #0072b2; background: #f2f6fa; padding: .6rem .9rem; margin: 1rem 0; }
.answer p:first-child { font-weight: 600; }
.answer p { max-width: none; margin: .25rem 0; overflow-wrap: anywhere; }
.warning { border-left: 4px solid #d55e00; background: #fdf4ec; padding: .5rem .9rem; margin: 1rem 0; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-size: .87rem; }
caption { text-align: left; padding: 0 0 .3rem; }
th, td { padding: .15rem .55rem; line-height: 1.25; text-align: right; vertical-align: top;
  border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; white-space: normal; }
th:first-child, .words td, .words th { text-align: left; }
tbody th { font-weight: 400; }
tbody th small { white-space: normal; }
.words td { white-space: normal; overflow-wrap: anywhere; }
td small, th small { color: #555; font-size: .85em; display: block; }
tr.best th, tr.best td { background: #e9f5ee; font-weight: 600; }
tr.group th, tr.group td { border-top: 2px solid #999; }
figure { margin: .8rem 0; overflow-x: auto; }
figcaption { padding-top: .2rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 0 1.2rem; }
svg { display: block; width: 100%; min-width: 330px; max-width: 620px; height: auto; font-family: inherit; }
dt { font-weight: 600; margin-top: .6rem; }
dd { margin: 0 0 0 1rem; max-width: 46rem; }
@page { size: A4; margin: 14mm 12mm; }
@media print {
  body { font-size: 9.5pt; max-width: none; padding: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2, h3, caption { break-after: avoid; }
  figure, .answer, .warning, tr, dt, .pair { break-inside: avoid; }
  dt { break-after: avoid; }
  thead { display: table-header-group; }
  tbody tr:nth-last-child(2) { break-after: avoid; }
  h2 { break-inside: avoid; }
  h2::after { content: ""; display: block; height: 40mm; margin-bottom: -40mm; }
  .wide, figure { overflow: visible; }
  .pair { grid-template-columns: 1fr 1fr; gap: 0 4mm; }
  svg { min-width: 0; }
  table { font-size: 8pt; }
  caption, figcaption, .small { font-size: 8.5pt; }
  th, td { padding: .05rem .3rem; }
}
"""


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole page, with its title as its headline.

    The page tells the browser to load nothing.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section; nothing where it has no parts."""
    kept = [part for part in parts if part]
    return "\n".join(["<section>", f"<h2>{escape(title)}</h2>", *kept, "</section>"]) if kept else ""


def paragraph(text: str, look: str = "") -> str:
    """Return a paragraph.

    Args:
        text: of the paragraph.
        look: a class of ``STYLE``.
    """
    return f'<p class="{look}">{escape(text)}</p>' if look else f"<p>{escape(text)}</p>"


def box(look: str, *paragraphs: str) -> str:
    """Return paragraphs in a box.

    Args:
        look: a class of ``STYLE``.
        paragraphs: as ``paragraph`` gave them.
    """
    return f'<div class="{look}">{"".join(paragraphs)}</div>'


def definitions(entries: Sequence[tuple[str, str]]) -> str:
    """Return words and their meanings; nothing where there are none."""
    told = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in entries)
    return f"<dl>\n{told}</dl>" if told else ""


def figure(caption: str, *pictures: str) -> str:
    """Return pictures with a caption; pictures stand side by side where there is room."""
    drawn = "".join(pictures)
    inner = f'<div class="pair">{drawn}</div>' if len(pictures) > 1 else drawn
    return f"<figure>{inner}<figcaption>{escape(caption)}</figcaption></figure>"


def table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    looks: Sequence[str] = (),
    is_words: bool = False,
) -> str:
    """Return a table; nothing where it has no rows.

    Args:
        caption: says what the table shows.
        heads: of the columns; the first column is the head of its row.
        rows: their texts.
        looks: a class of ``STYLE`` for each row.
        is_words: whether the texts are words, not numbers.
    """
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(_row(row, look) for row, look in zip(rows, looks or [""] * len(rows), strict=True))
    kind = ' class="words"' if is_words else ""
    shown_head = f"<thead><tr>{head}</tr></thead>\n" if any(heads) else ""
    return (
        f'<div class="wide"><table{kind}><caption>{escape(caption)}</caption>\n'
        f"{shown_head}<tbody>\n{body}</tbody></table></div>"
    )


def _row(row: Sequence[Text], look: str) -> str:
    cells = "".join(f"<td>{_text(each)}</td>" for each in row[1:])
    begin = f'<tr class="{look}">' if look else "<tr>"
    return f'{begin}<th scope="row">{_text(row[0])}</th>{cells}</tr>\n'


def _text(text: Text) -> str:
    if isinstance(text, str):
        return escape(text)
    return f"{escape(text[0])}<small>{escape(text[1])}</small>" if text[1] else escape(text[0])
