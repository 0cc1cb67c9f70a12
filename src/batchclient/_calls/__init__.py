"""From a caller's arguments to a request: every check before anything is queued."""
