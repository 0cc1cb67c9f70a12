"""From threads to an event loop."""
