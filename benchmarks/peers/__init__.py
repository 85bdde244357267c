"""Other ways to share three numbers per process, each through the same few methods."""
