"""One of the processes that tests over ranks run in: it does the jobs that come in by its pipe.

Run as `python -m tests.parallel.worker RANK RANKS STORE SECONDS`.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def main(rank: int, ranks: int, store: str, seconds: float) -> None:
    """Join the others, make a group of the first n of them for every n, and serve."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints does not get among the answers
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=seconds),
    )
    groups = {n: dist.new_group(list(range(n))) for n in range(1, ranks + 1)}
    while True:
        try:
            where, name, count, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        answer: Any
        try:
            job = getattr(importlib.import_module(where), name)
            answer = (True, job(groups[count], *args))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pickle.dump(answer, answers)
        answers.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
