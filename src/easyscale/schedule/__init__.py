"""Pure decisions: which job runs on which devices, and how its ESTs are spread over them.

Data in, decisions out: no clock, no I/O, no torch. The job master and the simulator run this very code.
"""
