"""A process of the group: made by `fork`, ended with its parent.

Forked and not started anew: the modules are loaded once and shared, and a successor takes a few milliseconds.
That is sound because the parent has one thread and no event loop, ever.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
CRASHED = 70
"""Exit code for an exception that nobody caught (EX_SOFTWARE)."""


def fork(work: Callable[[], int]) -> int:
    """Start a child that does `work` and ends with its exit code; returns the child's process id."""
    parent = os.getpid()
    gc.freeze()  # the child's collector leaves the pages that it shares alone
    pid = os.fork()
    if pid:
        return pid
    code = CRASHED
    try:
        _begin(parent)
        code = work()
    except BaseException:  # noqa: BLE001  whatever it is, the child ends here and not in the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def is_orphan(parent: int) -> bool:
    """Whether the parent has ended."""
    return os.getppid() != parent


def _begin(parent: int) -> None:
    """Get signals again, none of the terminal's, and SIGTERM when the parent ends."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on once
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if is_orphan(parent):  # it ended before the line above
        raise SystemExit(0)
