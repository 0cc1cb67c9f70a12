"""Journals: a map's answers on disk, so that a killed job goes on where it was.

- ``Journal`` is the caller's settings. A map opens it, one map at a time.
- ``held``: the open journal, as one process has it: lines in, records out.
- ``place``: how a process comes to have it; ``lease``: who has it, on whichever machine.
- ``lines``: JSON with a checksum; ``rows``: from an answer to its record, and back.
- ``thread``: does all this, so that the event loop never waits.
- ``_maps.journaled`` is the map's side, in the event loop.

Rules:
- A row is handed out after its commit. A kill loses no row that was handed out.
- At most eight groups wait for the thread. Then no further document is read.
- A row's identity is its content: model, parameters and prompt. Server and key are no part of it.
- A resume asks for the rows it reads, a batch at a time, by their keys. It remembers none.
"""

from typing import TYPE_CHECKING

from batchclient.journal.settings import Journal

if TYPE_CHECKING:
    from batchclient.journal.held import HeldJournal as HeldJournal

__all__ = ["Journal"]
