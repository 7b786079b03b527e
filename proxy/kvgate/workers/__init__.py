"""`kvgate serve --workers N`: N processes on one port, and a parent that keeps them there.

    parent ──┬── worker 1   clients on the shared port, operators on a socket of its own
             ├── worker 2   …
             └── front      the admin port: asks the workers, and answers for all of them

The workers are equals that share one ledger; the parent serves nothing and waits for nobody, so that nothing
that happens to a request can take it down. Linux only: the kernel shares out the connections and ends the
children with their parent.
"""

from kvgate.workers.parent_log import log_without_waiting
from kvgate.workers.supervisor import run

__all__ = ["log_without_waiting", "run"]
