"""The decisions of kvgate as pure functions: numbers in, decisions out.

No I/O, no clock, no randomness, no event loop; what a function needs it is given. The same code decides
in the proxy, in the simulator and in replay.
"""
