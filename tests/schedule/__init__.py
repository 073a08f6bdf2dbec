"""Decisions without a process: plans, proposals, policies."""
