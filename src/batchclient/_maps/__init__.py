"""What maps are made of: the reader of documents, the results, how often a document came."""
