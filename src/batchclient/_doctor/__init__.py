"""``batchclient doctor``: facts about a server, gathered without harm, and the findings they allow.

- ``facts``: the record of all facts. ``pages`` reads the facts of pages, ``way`` those of the way
  to the server. These modules and ``checks`` are pure.
- ``checks``: the table of checks. ``diagnosis`` turns facts into findings.
- ``trials``: three small requests at most. ``visit``: the pages, then the trials. ``machine``: the
  share of a core that this process gets.

Rules:
- A finding rests on something that the server told or did, and says on what. A fact that is missing
  is ``None``, and a check without its facts finds nothing: it is listed as not known.
- The server gets GETs for its pages, and at most three small requests.
- No key, no part of a URL that may hold one, and no text of a prompt is in a finding.
"""
