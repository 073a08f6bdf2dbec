"""Jobs whose workers come, go and die while they train: the bits are those of the undisturbed run at every step."""
