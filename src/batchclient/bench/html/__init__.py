"""The report for people: one HTML file, made from the JSON alone.

Rules:
- One file: inline SVG and CSS, no script, and nothing is loaded from anywhere.
- The answer stands first; under every picture stands the table of its figures.
- A setting that measured the client, in which calls failed, or whose calls arrived faster than they
  were answered, is drawn hollow, and is called the best one nowhere.
- The page has no text of prompts or answers and no key, since the JSON has none.
"""

from batchclient.bench.html.page import html_of

__all__ = ["html_of"]
