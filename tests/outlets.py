"""Where a key or a prompt could come out: of an error, and of all that is logged."""

import logging
import pickle
import traceback

__all__ = ["LogOutlet", "frames_of", "of_error", "records_of", "shown_in"]


def _chain(error):
    """The error, and every cause and context, whether it is shown or not."""
    left, seen = [error], {}
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen[id(one)] = one
            left += [one.__cause__, one.__context__]
    return list(seen.values())


def _words_of(error):
    """What hangs on an error: its texts, attributes and notes, and those of its causes and contexts."""
    return "\n".join(
        word
        for one in _chain(error)
        for word in (str(one), repr(one), repr(one.args), repr(vars(one)), *getattr(one, "__notes__", ()))
    )


def frames_of(error):
    """The local variables of every frame that an error keeps, but for the test's own and what the caller gave."""
    given, words = ("prompt", "item", "params", "docs", "messages", "text", "query", "document"), []
    for one in _chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            ours = "/batchclient/" in frame.f_code.co_filename
            if "/tests/" not in frame.f_code.co_filename:
                words += [repr(value) for name, value in frame.f_locals.items() if not ours or name not in given]
    return "\n".join(words)


def records_of(error):
    """As ``frames_of``, of the variables that are objects of our own, whatever their names."""
    return [
        repr(value)
        for one in _chain(error)
        for frame, _ in traceback.walk_tb(one.__traceback__)
        for value in frame.f_locals.values()
        if type(value).__module__.startswith("batchclient.") and not isinstance(value, BaseException)
    ]


def of_error(error):
    """The outlets of an error by name. A traceback's lines of this source say KEY, not what it is."""
    return {
        "error": _words_of(error),
        "traceback": "".join(traceback.TracebackException.from_exception(error).format(chain=True)),
        "pickle": repr(pickle.dumps(error)) + repr(error.__reduce__()),
    }


class LogOutlet:
    """All that is logged at any level, and the fields of our own records, each of which is an event."""

    def __init__(self, caplog):
        self._caplog = caplog
        caplog.set_level(1)
        for name in ("batchclient", "httpx", "asyncio"):
            caplog.set_level(1, name)
        # Their own debug logs show the headers of replies; they are no part of ours, and said in the docs.
        for name in ("httpcore", "httpcore2"):
            caplog.set_level(logging.INFO, name)

    @property
    def text(self):
        ours = [vars(record) for record in self._caplog.records if record.name == "batchclient"]
        assert all("event" in each for each in ours), "each record is an event"
        return self._caplog.text + repr(ours)


def shown_in(outlets, canaries):
    """(outlet, canary, the words around it) of each outlet that shows one."""
    return [
        (outlet, canary, text[max(0, text.find(canary) - 200) :][:400])
        for outlet, text in outlets.items()
        for canary in canaries
        if canary in text
    ]
