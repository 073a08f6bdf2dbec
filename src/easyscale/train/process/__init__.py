"""Runs in the worker process: what stands between the launcher and the user's script."""
