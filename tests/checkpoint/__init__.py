"""Checkpoints on disk: what is written is read, bit for bit and type for type, or refused."""
