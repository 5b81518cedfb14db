"""Who does not answer: what torch.distributed says of a lost rank, turned into that rank's number.

When an exchange fails, every rank that is still there says so in the store that all share. Those
that have not said it within a moment are the ones that died or hang.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from maskwright.errors import MaskError, RankError

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE: Final = 3.0  # seconds that the others have to notice it too
FIX: Final = "Look at the log, and start the job again from the last checkpoint."


@contextmanager
def silence_named(group: Any) -> Iterator[None]:
    """Inside, an exchange that fails raises RankError, which names who does not answer."""
    try:
        yield
    except MaskError:
        raise
    except RuntimeError as error:
        ranks = _silent(group)
        if not ranks:
            message = f"Ranks lost each other in an exchange ({_short(error)}). {FIX}"
        elif len(ranks) == 1:
            message = f"Rank {ranks[0]} does not answer: it has died, or hangs. {FIX}"
        else:
            named = ", ".join(map(str, ranks))
            message = f"Ranks {named} do not answer: they have died, or hang. {FIX}"
        raise RankError(message, ranks=ranks) from error


def _silent(group: Any) -> list[int]:
    """The ranks of a group that do not say that they are there."""
    ranks, me = dist.get_process_group_ranks(group), dist.get_rank()
    missing = [rank for rank in ranks if rank != me]
    try:
        store = dist.group.WORLD.get_group_store()  # of all: not every group may have noticed yet
        store.set(_name(me), "here")
        end = time.monotonic() + GRACE
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not store.check([_name(rank)])]
            time.sleep(0.02)
    except RuntimeError:  # the store went with the rank that kept it
        return [0] if me else []
    return missing


def _name(rank: int) -> str:
    return f"maskwright/here/{rank}"


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]
