"""Shared vocabulary: frozen values, standard library only. Every process may import this."""
