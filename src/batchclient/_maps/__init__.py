"""The parts of maps: rows, the reader of documents, results, progress, the way to the journal."""
