"""A node pack with nothing in it, for pyisolate to load."""
