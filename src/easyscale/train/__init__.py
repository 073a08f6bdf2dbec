"""Runs in the worker process; the home of torch."""
