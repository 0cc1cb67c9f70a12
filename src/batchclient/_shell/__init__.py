"""The shell joins the core to a clock, tasks and servers."""
