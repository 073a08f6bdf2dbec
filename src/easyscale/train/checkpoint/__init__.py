"""A job's state on disk: written whole or not at all, read only when every byte is as it was written. In the worker."""
