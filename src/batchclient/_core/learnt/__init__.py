"""What past replies have taught: lengths, times, what a server can do."""
