"""The backends that compute attention."""
