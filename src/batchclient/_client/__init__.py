"""The methods of ``BatchClient``, by what they are for, and what a client is made of."""
