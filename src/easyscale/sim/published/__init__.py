"""The rules of the simulator published with the paper, errors included, written out anew from their description.

For ``easyscale simulate --published`` alone: it makes the published figures comparable. Nothing here is used elsewhere.
"""
