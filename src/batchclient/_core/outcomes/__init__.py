"""How a call ends, or is sent again."""
