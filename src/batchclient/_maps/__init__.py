"""The parts of maps: the reader of documents, the results, the count of repeated documents."""
