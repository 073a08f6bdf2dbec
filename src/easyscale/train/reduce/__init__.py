"""Gradient reduction over virtual ranks in an order that is ours; the transport only moves bytes."""
