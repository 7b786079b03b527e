"""Asking a running kvgate over its admin port, and saying clearly why it did not answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:9091"
ADMIN_ENV, TOKEN_ENV, TOKEN_FILE_ENV = "KVGATE_ADMIN", "KVGATE_ADMIN_TOKEN", "KVGATE_ADMIN_TOKEN_FILE"
ANSWER_S_MAX = 10.0
"""For one answer: a kvgate whose loop is stuck for so long has other troubles."""
TOKEN_BYTES_MAX = 4096

Admin = Annotated[
    str | None,
    typer.Option("--admin", metavar="URL", help=f"The admin port. Default: KVGATE_ADMIN, or {DEFAULT_URL}"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the admin token; or KVGATE_ADMIN_TOKEN."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
InPool = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="In this pool only. Default: in all.")
]


class AdminPort:
    """The admin port of a running kvgate. Every method raises ConfigError when the answer is no, with the reason."""

    def __init__(self, url: str | None, token_file: Path | None) -> None:
        self._url = (url or os.environ.get(ADMIN_ENV) or DEFAULT_URL).rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"--admin: {self._url!r} is not allowed; allowed: a URL such as {DEFAULT_URL}")
        self._token = _token(token_file)

    def get(self, path: str, **query: str | None) -> Any:
        return self._ask("GET", path, query=query)

    def post(self, path: str, body: object) -> Any:
        return self._ask("POST", path, body=body)

    def patch(self, path: str, body: object) -> Any:
        return self._ask("PATCH", path, body=body)

    def delete(self, path: str, **query: str | None) -> Any:
        return self._ask("DELETE", path, query=query)

    def _ask(
        self, method: str, path: str, *, query: dict[str, str | None] | None = None, body: object = None
    ) -> Any:
        import httpx  # noqa: PLC0415  takes 100 ms

        params = {name: value for name, value in (query or {}).items() if value is not None}
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False, headers=headers) as client:
                answer = client.request(method, self._url + path, params=params, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConfigError(
                f"no kvgate answers at {self._url} ({why}). Is it running, and is this its admin port? "
                f"Another one: --admin URL or {ADMIN_ENV}"
            ) from error
        return self._read(answer.status_code, answer.content)

    def _read(self, status: int, content: bytes) -> Any:
        import json  # noqa: PLC0415

        try:
            told = json.loads(content)
        except ValueError:
            told = None
        if status == 401:
            what = "is wrong" if self._token else "is missing"
            raise ConfigError(
                f"the admin token {what}: {TOKEN_ENV}, {TOKEN_FILE_ENV} or --token-file; kvgate at {self._url} has one"
            )
        if not isinstance(told, dict) or (status >= 400 and "detail" not in told):
            raise ConfigError(f"what answers at {self._url} (status {status}) is no admin port of kvgate")
        if status >= 400:
            raise ConfigError(str(told["detail"]))
        return told


def _token(file: Path | None) -> str:
    named = file or (Path(os.environ[TOKEN_FILE_ENV]) if os.environ.get(TOKEN_FILE_ENV) else None)
    if named is None:
        return _ascii(os.environ.get(TOKEN_ENV, "").strip(), TOKEN_ENV)
    try:
        with named.open("rb") as opened:
            token = opened.read(TOKEN_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: {named} cannot be read: {error}") from error
    return _ascii(token, f"--token-file: what is in {named}")


def _ascii(token: str, place: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise ConfigError(f"{place} is no token: one line of ASCII text")
    return token


def only_alone(context: typer.Context, *given: object) -> None:
    """Options before a subcommand would not reach it. Raises ConfigError."""
    if context.invoked_subcommand is not None and any(given):
        raise ConfigError(
            f"options go behind the command: {context.command_path} {context.invoked_subcommand} …"
        )


def segment(name: str) -> str:
    """A name as one segment of a path."""
    from urllib.parse import quote  # noqa: PLC0415

    return quote(name, safe="")


def print_json(told: object) -> None:
    import json  # noqa: PLC0415

    typer.echo(json.dumps(told, indent=2))


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """An empty table in the style of all commands; the columns in `right` have numbers."""
    from rich.table import Table  # noqa: PLC0415

    made = Table(title=None, box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def show(*parts: Table | str) -> None:
    from rich.console import Console  # noqa: PLC0415

    from kvgate.cli.findings import WIDTH_WITHOUT_TERMINAL  # noqa: PLC0415

    width = None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)
    for part in parts:
        console.print(part, markup=False)


def seconds(value: float) -> str:
    """`1.5 s`, `12 min`, `3 h`: for people."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


def share(value: float) -> str:
    return f"{round(value * 100, 4):g}%"
