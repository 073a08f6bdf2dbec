"""Bits only: a job's tensors after every step, over placements, and against plain DistributedDataParallel."""
