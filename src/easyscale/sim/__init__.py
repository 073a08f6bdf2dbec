"""The cluster on simulated time. Runs in ``easyscale simulate``, without torch.

Time is a number that jumps from event to event, so a day takes a second. What is simulated is the cluster: devices,
jobs, failures, demand of others. What decides is not simulated: it is ``easyscale.schedule``, as production runs it.
"""
