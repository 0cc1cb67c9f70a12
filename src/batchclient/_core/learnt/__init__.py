"""Learnt from past replies: lengths, times, a server's abilities."""
