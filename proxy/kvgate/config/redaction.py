"""What is shown of a text that may hold a secret: everything but the secret.

Promises: nothing between `://` and the last `@` is shown, whatever characters a password has, in messages, logs
and `/admin`. The user goes with it: in a URL like `redis://:secret@host` a slip makes the secret the user. Nor is
a digest of a key: a weak key could be found from it.
"""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)\S*@")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


def redacted(text: str) -> str:
    """`redis://…@host:6379/0` of `redis://user:password@host:6379/0`; other text as it is."""
    return _DIGEST.sub("…", _CREDENTIALS.sub("…@", text))
