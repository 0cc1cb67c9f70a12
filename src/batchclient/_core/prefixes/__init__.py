"""Calls that begin alike, so that a server computes the common part once."""
