"""Journals: a map's answers on disk, so that a killed job goes on where it was.

- ``Journal`` says where the file is and how it is written. A map opens it, one map at a time.
- ``place``: the file's place, its lock, and the file systems that cannot hold it.
- ``file``: the SQLite file; ``keys``: where each key's record is in it.
- ``records``: from an answer to a record with its checksum, and back.
- ``writer``: the thread with the only connection. It looks rows up, and commits them in groups.
- ``_maps.journaled`` is the map's side, in the event loop.

Rules:
- A row is handed out after its commit. A kill loses no row that was handed out.
- A commit is one statement with many rows, in a thread: a commit takes milliseconds, and one
  statement a row would hold the interpreter's lock for each.
- The thread is the only writer, by a lock beside the file. Other connections only read: SQLite
  before 3.51.3 can damage a file which two connections write or checkpoint at once.
- At most eight groups wait for the thread. Then no further document is read.
- A row's identity is its content: model, parameters and prompt. Server and key are no part of it.
- Each record has a checksum, since SQLite has none. A damaged row runs again.
- A resume asks for the rows it reads, a batch at a time, by their keys. It remembers none.
"""

from batchclient.journal.journal import Journal

__all__ = ["Journal"]
