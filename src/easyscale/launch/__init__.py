"""Runs in the launcher: starts worker processes, listens to them, ends them. Knows no torch and no training code."""
