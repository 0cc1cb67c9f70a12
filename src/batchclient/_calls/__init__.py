"""From a caller's arguments to a request: every check that can be made before anything is queued."""
