"""Whether a policy file changed: a note each time, and nothing else.

What is watched is the directory. A ConfigMap is replaced by swapping a symbolic link beside the file (`..data`), an
editor writes a new file and renames it: a watch on the file itself would keep looking at what is gone. Whoever is
told reads the file again; a change that turns out to be none costs a read. Where the file is a link into another
directory, that one is watched as well.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

from watchfiles import awatch

QUIET_MS = 200
"""A change is told once nothing more happened for so long: a file is often written in several pieces."""
TOLD_AFTER_MS_MAX = 2000
"""Or after so long at the latest, in a directory that is never quiet."""
LOOK_UP_MS = 500
"""Between two looks at whether to go on: so long may it take to end, since the wait is in a thread."""
DIRECTORIES_MAX = 64
"""Each is a watch of the kernel's."""

logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would tell of each change that is looked at


async def changes(*paths: Path) -> AsyncIterator[None]:
    """A None each time one of the files may have changed; ends with its consumer only, within half a second.

    Args:
        paths: The policy file, and others whose content counts with it, such as key files.

    Raises:
        OSError: A directory is not there, or can't be watched.
    """
    watched = {place for path in paths for place in (path.absolute(), path.resolve())}
    directories = sorted({path.parent for path in watched})[:DIRECTORIES_MAX]
    async for _ in awatch(
        *directories,
        watch_filter=lambda _change, name: _counts(watched, Path(name)),
        debounce=TOLD_AFTER_MS_MAX,
        step=QUIET_MS,
        rust_timeout=LOOK_UP_MS,
        recursive=False,
    ):
        yield


def _counts(watched: set[Path], changed: Path) -> bool:
    """The file itself, or a link of the kind by which all files of a directory are swapped at once."""
    return changed in watched or changed.name.startswith("..")
