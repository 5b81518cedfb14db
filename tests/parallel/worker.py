"""One of the processes that tests over ranks run in: it does the jobs that come in by its pipe."""

from __future__ import annotations

import importlib
import os
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def serve(pipe: Connection, rank: int, ranks: int, store: str, seconds: float) -> None:
    """Join the others, make a group of the first n of them for every n, and do jobs."""
    torch.set_num_threads(1)
    most = timedelta(seconds=seconds)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=most
    )
    groups = {n: dist.new_group(list(range(n)), timeout=most) for n in range(1, ranks + 1)}
    with suppress(EOFError):
        while True:
            where, name, count, args = pipe.recv()
            pipe.send(_done(where, name, groups[count], *args))
    dist.destroy_process_group()


def launched(
    pipe: Connection, rank: int, ranks: int, port: int, job: tuple[str, str], args: tuple[Any, ...]
) -> None:
    """Do one job, with all that torchrun tells its processes."""
    torch.set_num_threads(1)
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    pipe.send(_done(*job, *args))


def _done(where: str, name: str, *args: Any) -> tuple[bool, Any]:
    try:
        job = getattr(importlib.import_module(where), name)
        return True, job(*args)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
