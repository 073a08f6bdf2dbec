"""The order in which gradients are added, alone and against the transport that it imitates."""
