"""Looks at engines every 10 ms, as a process of its own, so that a busy test does not make it blind.

    python sampler.py URL [URL …]

One connection and one thread for each engine. It says "ready" on stdout, samples until its stdin ends, then
prints a line for each sample: time (seconds of the machine's monotonic clock), number of the engine, then the
`FIELDS` of `GET /sim/state`. A look that failed is a line with the time and the number alone.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse

INTERVAL_S = 0.01
FIELDS = ("blocks_used", "blocks_usable", "running", "waiting", "preemptions")
_TIMEOUT_S = 2.0


class Looker:
    def __init__(self, number: int, url: str, end: threading.Event) -> None:
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_S)
        self._number = number
        self._end = end
        self.lines: list[str] = []

    def run(self) -> None:
        due_s = time.monotonic()
        while not self._end.is_set():
            self.lines.append(self._look())
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def _look(self) -> str:
        start_s = time.monotonic()
        try:
            self._connection.request("GET", "/sim/state")
            state = json.loads(self._connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            self._connection.close()
            return f"{start_s:.4f} {self._number}"
        at_s = (start_s + time.monotonic()) / 2
        return f"{at_s:.4f} {self._number} " + " ".join(str(state[field]) for field in FIELDS)


def main(urls: list[str]) -> None:
    end = threading.Event()
    lookers = [Looker(number, url, end) for number, url in enumerate(urls)]
    threads = [threading.Thread(target=looker.run) for looker in lookers]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    print("\n".join(line for looker in lookers for line in looker.lines))


if __name__ == "__main__":
    main(sys.argv[1:])
