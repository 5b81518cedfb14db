"""The explorer as a person feels it: a keystroke answered, and a million tokens drawn.

A real server on this machine, asked by a real client, one request after the other.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import maskwright as mw
from benchmarks.measure import machine, save, table

if TYPE_CHECKING:
    from collections.abc import Iterator

TYPED = "causal() & window(back=12) | keys([0, 1]) & documents(lengths=[[20, 30, 14]])"
TOKENS, LONG = 64, 2**20
WAIT = 60


def run() -> int:
    """Measure, print and keep it."""
    with explorer() as ask:
        ask("mask", typed("causal()", TOKENS))
        keystrokes = [seconds(ask, text, TOKENS) for text in expressions() for _ in range(3)]
        long = [seconds(ask, f"window(back={4095 + n})", LONG) for n in range(5)]
    drawn = [picture() for _ in range(5)]
    result = {
        "keystroke": {
            "tokens": TOKENS,
            "requests": len(keystrokes),
            "median": statistics.median(keystrokes),
            "slowest": max(keystrokes),
        },
        "million": {"tokens": LONG, "request": min(long), "svg": min(drawn)},
    }
    rows = [
        [
            f"a keystroke, {TOKENS} tokens, median of {len(keystrokes)}",
            f"{1e3 * result['keystroke']['median']:.1f} ms",
            "100 ms",
        ],
        ["the slowest of these", f"{1e3 * max(keystrokes):.1f} ms", ""],
        [f"a window of 4,096 over {LONG:,} tokens, asked", f"{min(long):.2f} s", "1 s"],
        ["the same as SVG, in Python", f"{min(drawn):.2f} s", "1 s"],
    ]
    print(table(["what", "took", "at most"], rows))
    print(f"\n{machine()['cpu']}\nwritten to {save('explore', result)}")
    return 0


def expressions() -> Iterator[str]:
    """The text after each keystroke; incomplete masks get a response, too."""
    for stop in range(1, len(TYPED) + 1):
        yield TYPED[:stop]


def seconds(ask: Any, expression: str, size: int) -> float:
    start = time.perf_counter()
    status = ask("mask", typed(expression, size))
    took = time.perf_counter() - start
    assert status in (200, 422), f"{expression}: {status}"
    return took


def picture() -> float:
    start = time.perf_counter()
    mw.picture(mw.window(back=4095).on(LONG), form="svg")
    return time.perf_counter() - start


def typed(expression: str, size: int) -> dict[str, Any]:
    subject = {"expression": expression, "tokens": None, "padding": False, "size": size}
    return {"subject": subject, "batch": 0, "head": 0, "view": None, "most": 128}


@contextmanager
def explorer() -> Iterator[Any]:
    """A server of its own, and a function that asks it and gives the status."""
    command = [sys.executable, "-m", "maskwright", "explore", "--no-open", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://([\d.]+):(\d+)/", server.stdout.readline())
        assert address is not None
        host, port = address[1], int(address[2])
        token = re.search(rb'maskwright-token" content="([^"]+)"', _page(host, port))
        assert token is not None
        headers = {
            "Content-Type": "application/json",
            "Origin": f"http://{host}:{port}",
            "X-Maskwright-Token": token[1].decode(),
        }
        line = HTTPConnection(host, port, timeout=WAIT)

        def ask(name: str, body: dict[str, Any]) -> int:
            line.request("POST", f"/api/{name}", json.dumps(body), headers)
            answer = line.getresponse()
            answer.read()
            return answer.status

        yield ask
        line.close()
    finally:
        server.terminate()
        server.wait()


def _page(host: str, port: int) -> bytes:
    """The page, as soon as there is one."""
    until = time.monotonic() + WAIT
    while True:
        line = HTTPConnection(host, port, timeout=WAIT)
        try:
            line.request("GET", "/")
            return line.getresponse().read()
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        finally:
            line.close()
