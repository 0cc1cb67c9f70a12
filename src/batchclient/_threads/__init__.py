"""The way from threads to an event loop."""
