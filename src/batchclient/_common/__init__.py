"""What every folder may import, and what imports none of them: the log, forks, open files."""
