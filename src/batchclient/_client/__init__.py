"""The methods of ``BatchClient``, by purpose, and the parts of a client."""
