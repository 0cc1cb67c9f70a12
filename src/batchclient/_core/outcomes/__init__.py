"""How a call ends, or goes again."""
