"""Every method of a bound mask returns, or raises SizeError, within the documented limit."""

from __future__ import annotations

import inspect
import random
import resource
import signal
from typing import TYPE_CHECKING, Any

import pytest

import maskwright as mw
from maskwright.core import bound as bound_module
from maskwright.core import evaluate, tiles
from tests._helpers.run_python import run_python
from tests._helpers.sampling import ALL

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 2**20
MAX_BYTES = 32 * MB  # in place of 8 GB, so that the test needs little memory
MEMORY = 512 * MB  # results, their parts, and what computes them
SECONDS = 0.05 if ALL else 0.02  # per call: a mask without a closed form is interrupted
CASES = 100


def next_row(bound: mw.BoundMask) -> Any:
    try:
        return bound.next().empty_rows()
    except mw.FrameError:  # the data of the mask has no next token
        return None


METHODS: dict[str, Callable[[mw.BoundMask], Any]] = {
    "spans": lambda bound: bound.spans,
    "dense": lambda bound: bound.dense(),
    "tiles": lambda bound: bound.tiles(),
    "coverage": lambda bound: bound.coverage(2**20),
    "count": lambda bound: bound.count(),
    "density": lambda bound: bound.density,
    "empty_rows": lambda bound: bound.empty_rows(),
    "unseen_keys": lambda bound: bound.unseen_keys(),
    "why": lambda bound: bound.why(0, 0),
    "equals": lambda bound: bound.equals(mw.causal() | mw.stride(3)),
    "rows": lambda bound: bound.rows(0, 1).count(),
    "step": lambda bound: bound.step(bound.frame.q_start).empty_rows(),
    "next": lambda bound: next_row(bound),
    "shape": lambda bound: bound.shape,
    "frame": lambda bound: bound.frame,
    "cached": lambda bound: bound.cached("key", lambda: 1),
    "has_cached": lambda bound: bound.has_cached("spans"),
    "__str__": str,
    "__repr__": repr,
    "__array__": lambda bound: bound.__array__(),
}


def atoms(rng: random.Random, tokens: int) -> mw.Mask:
    n = rng.choice([1, 2, 3, 1000, 2**20, 2**30])
    kinds: list[Callable[[], mw.Mask]] = [
        mw.causal,
        mw.everything,
        lambda: mw.window(back=n, ahead=rng.choice([0, n, None])),
        lambda: mw.stride(rng.choice([2, 3, n])),
        lambda: mw.chunks(n),
        lambda: mw.prefix(rng.sample(range(tokens), min(2, tokens))),
        lambda: mw.keys(range(0, tokens, rng.choice([1, max(1, tokens // 1000)]))),
        lambda: mw.queries(range(0, tokens, max(1, tokens // 100))),
        lambda: mw.padding(lengths=[tokens // 2, tokens]),
        lambda: mw.documents(lengths=[[tokens // 3, tokens // 2], [tokens]]),
        lambda: mw.graph([(0, tokens - 1), (tokens // 2, tokens - 1)]),
        lambda: mw.where(lambda b, h, q, k: (q + k) % 7 < 3),
        lambda: mw.tree(range(-1, tokens - 1)) if tokens <= 1024 else mw.causal(),
    ]
    side = int(tokens**0.5)
    if side * side == tokens:
        kinds.append(lambda: mw.image(side, side, min(n, 50), border=rng.choice(["cut", "shift"])))
    return rng.choice(kinds)()


def masks(rng: random.Random, tokens: int, depth: int = 3) -> mw.Mask:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return atoms(rng, tokens)
    if kind < 0.6:
        return masks(rng, tokens, depth - 1) & masks(rng, tokens, depth - 1)
    if kind < 0.8:
        return masks(rng, tokens, depth - 1) | masks(rng, tokens, depth - 1)
    return ~masks(rng, tokens, depth - 1) if kind < 0.9 else masks(rng, tokens, depth - 1).T


class TimeUpError(KeyboardInterrupt):
    """Raised in a call that takes long, as Ctrl-C does."""


def time_up(*_: object) -> None:
    raise TimeUpError


def call_all(part: int) -> None:
    """Calls every method of some random masks in a process with an address-space limit."""
    for module in (bound_module, evaluate, tiles):
        module.MAX_BYTES = MAX_BYTES  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, time_up)
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115, PTH123
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    results = {"returned": 0, "SizeError": 0, "interrupted": 0}
    for case in range(part, CASES, PARTS):
        rng = random.Random(case)
        tokens = rng.choice([1, 7, 1024, 2**20, 10**6, 2**30, 2**31 - 1])
        mask = masks(rng, tokens)
        for name, method in METHODS.items():
            bound = mask.on(tokens, batch=2, heads=rng.choice([1, 3]))
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, SECONDS)
                    method(bound)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                outcome = "returned"
            except mw.SizeError:
                outcome = "SizeError"
            except TimeUpError:
                outcome = "interrupted"
            except Exception as error:
                raise AssertionError(f"case {case}: {name} of {mask!r:.200} on {tokens}") from error
            results[outcome] += 1
    print(*results.values())


PARTS = 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_memory_is_limited(part: int) -> None:
    code = f"from tests.core.test_memory_limit import call_all; call_all({part})"
    done = run_python(code, OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-3000:]
    returned, refused, _ = map(int, done.stdout.split())
    assert returned > refused > 0


def test_every_public_method_is_called() -> None:
    public = {
        name
        for name, value in inspect.getmembers(mw.BoundMask)
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }
    assert public <= set(METHODS)
