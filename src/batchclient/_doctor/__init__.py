"""``batchclient doctor``: facts about a server, gathered without harm, and the findings they allow.

- ``facts``: the record of all facts, and what a finding is. ``pages`` reads the facts of pages.
- ``examination``: the pages, a call, a list of eight, and what the client's statistics then say.
- ``checks``: twelve functions from facts to findings. ``report``: all of them, as text and JSON.

Rules:
- The doctor asks as a user of the client does. What a list, a stream or an error is, the client
  says.
- A finding rests on something that the server says or did, and says on what. A fact that is missing
  is ``None``, and a check without its facts finds nothing: it is listed as not known.
- The server gets GETs for its pages, and at most seventeen prompts in three requests.
- No key, no part of a URL that may hold one, and no text of a prompt is in a finding.
"""
