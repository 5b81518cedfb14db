"""Communication over torch.distributed: all-to-all, agreement of ranks, and detection of lost ranks.

Nothing here knows what a mask is.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maskwright._optional_deps import require
from maskwright.errors import ArgumentError, MaskError, RankError

with require("maskwright.parallel"):
    import torch
    import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIGEST_SIZE: Final = 32  # bytes
REFUSED: Final = bytes(DIGEST_SIZE)  # instead of digests, from a rank whose arguments are invalid
HEARTBEAT: Final = 0.25  # seconds between two heartbeats of a rank
MAX_SILENCE: Final = 4.0  # seconds without a heartbeat after which a rank counts as lost
STORE_TIMEOUT: Final = 4.0  # seconds more, after which the store counts as lost, with its rank
FIX: Final = "See the logs of all ranks, and restart the job from the last checkpoint."


@dataclass
class PendingRows:
    """An all-to-all that has started."""

    work: Any
    received: torch.Tensor
    sent: torch.Tensor  # must live until it has been read

    def wait(self) -> torch.Tensor:
        """Wait for the received rows, in the order of their ranks."""
        if self.work is not None:
            with report_peer_failure():
                self.work.wait()
        return self.received


def all_to_all_rows(
    rows: torch.Tensor, out_counts: Sequence[int], in_counts: Sequence[int], group: Any
) -> PendingRows:
    """Start an all-to-all of rows.

    Args:
        rows: The rows to send, (rows, ...), in the order of the ranks that receive them.
        out_counts: The number of rows for each rank.
        in_counts: The number of rows from each rank.
        group: The process group.
    """
    rows = rows.contiguous()
    size = rows.element_size() * rows.shape[1:].numel()  # bytes per row
    received = rows.new_empty((sum(in_counts), *rows.shape[1:]))
    if not size:
        return PendingRows(None, received, rows)
    with report_peer_failure():
        work = dist.all_to_all_single(
            received.reshape(-1).view(torch.uint8),  # some backends lack some dtypes
            rows.reshape(-1).view(torch.uint8),
            [n * size for n in in_counts],
            [n * size for n in out_counts],
            group=group,
            async_op=True,
        )
    return PendingRows(work, received, rows)


class AllToAll(torch.autograd.Function):
    """A differentiable all-to-all of rows: gradients return to the ranks that sent the rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, out_counts: list[int], in_counts: list[int], group: Any
    ) -> torch.Tensor:
        """The received rows; the arguments are those of `all_to_all_rows`."""
        ctx.args = out_counts, in_counts, group
        return all_to_all_rows(rows, out_counts, in_counts, group).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """The gradients of the sent rows."""
        out_counts, in_counts, group = ctx.args
        return all_to_all_rows(grad, in_counts, out_counts, group).wait(), None, None, None


@contextmanager
def agreement(names: tuple[str, ...], group: Any, device: torch.device) -> Iterator[list[object]]:
    """A context in which each rank reads its arguments; at its end they must be equal.

    It yields a list for the values that must be equal on all ranks, compared by `repr`. If one
    differs, or a rank has raised a MaskError, all ranks raise an error, that rank its own.

    Args:
        names: What the values are; the same on all ranks.
        group: The process group.
        device: The device of the group's tensors.
    """
    values: list[object] = []
    problem: MaskError | None = None
    try:
        yield values
        digests = b"".join(hashlib.sha256(repr(value).encode()).digest() for value in values)
    except MaskError as error:
        problem, digests = error, REFUSED * len(names)
    digest_tensor = torch.frombuffer(bytearray(digests), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(digest_tensor) for _ in range(dist.get_world_size(group))]
    with report_peer_failure():
        dist.all_gather(gathered, digest_tensor, group=group)
    if problem is not None:
        raise problem
    all_ranks = [bytes(part.tolist()) for part in gathered]
    if REFUSED * len(names) in all_ranks:
        rank = all_ranks.index(REFUSED * len(names))
        raise ArgumentError(f"The arguments of rank {rank} are invalid. See its own message.")
    for n, name in enumerate(names):
        of_name = [part[n * DIGEST_SIZE : (n + 1) * DIGEST_SIZE] for part in all_ranks]
        if len(set(of_name)) > 1:
            usual = max(set(of_name), key=lambda x: (of_name.count(x), -of_name.index(x)))
            odd = next(rank for rank, digest in enumerate(of_name) if digest != usual)
            raise ArgumentError(
                f"Rank {odd} has another {name} than most ranks. Pass the same on all ranks."
            )


def get_group(mesh: Any) -> Any:
    """The process group of a one-dimensional DeviceMesh, or the process group itself."""
    if hasattr(mesh, "get_group"):
        if mesh.ndim != 1:
            raise ArgumentError(
                f"mesh has {mesh.ndim} dimensions, expected 1. Pass one of them: mesh[name]."
            )
        return mesh.get_group()
    return mesh


@contextmanager
def report_peer_failure() -> Iterator[None]:
    """Within the context, communication that fails raises RankError with the ranks that are lost.

    All ranks must enter such a context for the first time at about the same time: from then on they
    send heartbeats.
    """
    monitor = PeerMonitor.start_or_get() if dist.is_initialized() else None
    try:
        yield
    except MaskError:
        raise
    except RuntimeError as error:
        reason = f"An operation over ranks failed: {str(error).partition(chr(10))[0][:120]}"
        lost, absent = monitor.diagnose() if monitor else ([], [])
        if lost:
            raise RankError(f"{_named(lost)} died or stopped. {FIX}", ranks=lost) from error
        if absent:
            message = f"{_named(absent)} did not take part: late, hanging, or never started. {FIX}"
            raise RankError(f"{message} {reason}.", ranks=absent) from error
        raise RankError(f"{reason}. No rank is lost. {FIX}") from error


class PeerMonitor(threading.Thread):
    """Sends the heartbeats of this rank to the store, and finds the ranks whose heartbeats stop.

    A process that died or was stopped sends none. One that waits in a collective operation does,
    however long it waits. The first rank that finds others to be lost writes them to the store as
    the verdict: ranks that fail because of them end too, and must not be reported instead. Only this
    thread uses the store, since it may block if the rank that has the store is stopped.
    """

    _current: PeerMonitor | None = None

    def __init__(self) -> None:
        super().__init__(daemon=True, name="maskwright-heartbeat")
        self.world, self.rank = dist.group.WORLD, dist.get_rank()
        store = self.world.get_group_store()
        # The client of the process group is locked while it waits.
        self.store = dist.PrefixStore(
            "maskwright", store.clone() if hasattr(store, "clone") else store
        )
        self.peers = [rank for rank in range(dist.get_world_size()) if rank != self.rank]
        self.heartbeats: dict[int, tuple[bytes, float]] = {}  # the last of each peer, and its time
        self.failed_at: float | None = None  # when this rank noticed that communication fails
        self.verdict: list[int] | None = None
        self.absent: list[int] = []
        self.finished, self.store_lost = threading.Event(), False

    @classmethod
    def start_or_get(cls) -> PeerMonitor | None:
        """The monitor of this process; None if there are no other ranks."""
        if cls._current is None or cls._current.world is not dist.group.WORLD:
            if dist.get_world_size() == 1:
                return None
            cls._current = cls()
            cls._current.start()
        return cls._current

    def diagnose(self) -> tuple[list[int], list[int]]:
        """The ranks that are lost; or else those that did not take part, if others did."""
        if self.verdict is None and self.is_alive():
            self.heartbeats.clear()
            self.finished.clear()
            self.failed_at = time.monotonic()
        answered = self.finished.wait(2 * MAX_SILENCE + STORE_TIMEOUT)
        if self.verdict is not None:
            return self.verdict, []
        if self.rank and (self.store_lost or not answered):
            return [0], []  # which has the store
        return [], self.absent if len(self.absent) < len(self.peers) else []

    def run(self) -> None:
        """Send heartbeats until the process group is destroyed or the store is lost."""
        beat = 0
        try:
            while self.world is dist.group.WORLD:
                beat += 1
                self.store.set(f"heartbeat/{self.rank}", str(beat))
                if self.verdict is None and self.store.check(["verdict"]):
                    self._accept(self.store.get("verdict"))
                if self.failed_at is not None and not self.finished.is_set():
                    self._look_for_lost(self.failed_at)
                time.sleep(HEARTBEAT)
        except RuntimeError:
            self.store_lost = True
        finally:
            self.finished.set()

    def _look_for_lost(self, since: float) -> None:
        self.store.set(f"failed/{self.rank}", "")
        now = time.monotonic()
        started = [x for x in self.peers if self.store.check([f"heartbeat/{x}"])]
        for peer in started:
            beat = self.store.get(f"heartbeat/{peer}")
            if peer not in self.heartbeats or self.heartbeats[peer][0] != beat:
                self.heartbeats[peer] = beat, now
        silence = {peer: now - last for peer, (_, last) in self.heartbeats.items()}
        if max(silence.values(), default=0) >= MAX_SILENCE:
            lost = [peer for peer in started if silence[peer] >= MAX_SILENCE / 2]
            self._accept(self.store.compare_set("verdict", "", json.dumps(lost)))
        elif now - since > 1.5 * MAX_SILENCE:
            self.absent = [x for x in self.peers if not self.store.check([f"failed/{x}"])]
            self.finished.set()

    def _accept(self, verdict: bytes) -> None:
        """Take a verdict, and wait until the other ranks have it: this rank may have the store."""
        lost: list[int] = json.loads(verdict)
        self.store.set(f"accepted/{self.rank}", "")
        keys = [f"accepted/{peer}" for peer in self.peers if peer not in lost]
        end = time.monotonic() + MAX_SILENCE / 2
        while keys and time.monotonic() < end and not self.store.check(keys):
            time.sleep(HEARTBEAT / 4)
        self.verdict = lost
        self.finished.set()


def _named(ranks: list[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
