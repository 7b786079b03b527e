"""What is shown of a text that may hold a URL with a password in it: everything but the password.

Promises: nothing between `://` and the last `@` is shown, whatever characters a password has, in messages, logs
and `/admin`. The user goes with it: in a URL like `redis://:secret@host` a slip makes the secret the user.
"""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)\S*@")


def redacted(text: str) -> str:
    """`redis://…@host:6379/0` of `redis://user:password@host:6379/0`; other text as it is."""
    return _CREDENTIALS.sub("…@", text)
