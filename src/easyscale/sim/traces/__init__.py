"""Jobs in and out: one file for each format, all giving ``TraceJob`` values. Runs in ``easyscale simulate``."""
