"""Who waits for a permit, and who is next."""
