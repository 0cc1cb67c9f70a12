"""Where the core meets a clock, tasks and servers."""
