"""A stand-in for a vLLM server: its scheduler as a model, its wire, its faults, and no model weights.

For demos, tests and replay on machines without a GPU. Every answer says `server: kvgate-sim`.
"""

from __future__ import annotations

from kvgate.sim.profiles import find_profile, load_profiles
from kvgate.sim.server import SimOptions, SimServer, SimSettings, run, serve

__all__ = ["SimOptions", "SimServer", "SimSettings", "find_profile", "load_profiles", "run", "serve"]
