"""How every command ends: a clear line and an exit code.

0 done · 1 done, and the answer is no (a check that failed) · 2 wrong usage or settings · 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2


class LineErrors(TyperGroup):
    """Says what was wrong in a line for each mistake, without a frame: for logs and scripts, too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(
                args, prog_name or "kvgate", complete_var, False, windows_expand_args, **extra
            )
        except ConfigError as error:
            code = _refuse(str(error))
        except Exception as error:
            message = getattr(error, "format_message", None)  # what the argument parser raises has it
            if message is None:
                raise
            code = _refuse(message(), _help_of(error))
        if standalone_mode:
            sys.exit(code or 0)
        return code


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f" (see `{context.command_path} --help`)" if context is not None else ""


def _refuse(message: str, hint: str = "") -> int:
    for line in message.splitlines():
        print(f"kvgate: {line.removesuffix('.') if hint else line}{hint}", file=sys.stderr)  # noqa: T201  the command line's own output
    return EXIT_USAGE
