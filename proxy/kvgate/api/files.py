"""Open files: a request takes two, its client's connection and the engine's.

Idle connections of clients must never take the last files: then the engines could not be reached or probed, and
all of them would look dead. So clients get half of what the process may open, and the process asks for as much
as it is allowed.
"""

from __future__ import annotations

import resource

FILES_MAX = 1 << 20
"""Asked for at most; the kernel's own bound by default."""
SPARE = 32
"""For the ledger, the probes, the log, and what the interpreter opens."""


def raise_limit() -> None:
    """Set the process's soft limit to its hard one. Shells give 1024 of a million."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def client_connections_max() -> int:
    """How many connections of clients are kept at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MAX if soft == resource.RLIM_INFINITY else soft
    return max(1, (files - SPARE) // 2)
