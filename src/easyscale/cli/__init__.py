"""The command line: one file per verb, which parses, calls and prints. Runs in the launcher.

``easyscale --help`` answers at once: torch and rich are imported only by a verb that needs them, when it does.
"""
