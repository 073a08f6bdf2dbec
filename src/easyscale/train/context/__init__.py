"""What an EST has of its own and what is switched when its turn begins: random numbers and buffers."""
