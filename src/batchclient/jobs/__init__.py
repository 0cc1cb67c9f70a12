"""Jobs: files of rows."""
