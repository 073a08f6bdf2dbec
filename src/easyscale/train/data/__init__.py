"""Mini-batches of an EST: a function of seed, epoch, step and virtual rank, whoever loads them."""
