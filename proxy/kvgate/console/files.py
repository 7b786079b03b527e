"""The page itself: a handful of files that come with the package, read once and served as they are.

No build step, nothing from elsewhere. Each has an `ETag`, so that a browser asks and is told that it has it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from kvgate.console.problems import GUARDS

if TYPE_CHECKING:
    from starlette.requests import Request

FOLDER = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE = "index.html"


@dataclass(frozen=True, slots=True)
class File:
    body: bytes
    content_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        headers = {**GUARDS, "cache-control": "no-cache", "etag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(self.body, headers={**headers, "content-type": self.content_type})


def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """By name. Only what lies in the folder itself; no path of a request is ever opened."""
    paths = (path for path in folder.iterdir() if path.suffix in TYPES)
    return {path.name: _read(path) for path in paths}


def _read(path: Path) -> File:
    body = path.read_bytes()
    return File(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
