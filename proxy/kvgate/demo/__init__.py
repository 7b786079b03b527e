"""`kvgate demo`: the main job shown in about a minute, on any machine.

Four times what two simulated engines hold is offered at once, directly and then through kvgate, and the two
are put side by side, with what does not improve. The exit code says whether it came out as claimed.
"""

from __future__ import annotations

from kvgate.demo.show import run

__all__ = ["run"]
