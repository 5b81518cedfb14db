"""Attention along the edges of a graph: who goes with whom in a club that falls apart.

Zachary's karate club has 34 members, and 78 pairs who meet outside it. Four members say which side
they are on; the others are to be named from whom they know. With 34 tokens chance plays a part, so
several small models are trained from different seeds at once, and the report tells of all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from maskwright._optional_deps import require
from maskwright.apps.app import version_of
from maskwright.apps.training import Course, seeded
from maskwright.auditing.run import audit
from maskwright.core.atoms import everything, graph, window
from maskwright.core.parser import parse
from maskwright.draw.picture import picture
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError
from maskwright.models.attention import MultiHeadAttention
from maskwright.models.blocks import bound_mask, start_small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.apps.app import Prompt, Wishes
    from maskwright.apps.checkpoints import Progress
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

SIDES = ("Mr. Hi", "Officer")
VERSIONS = ("graph", "everything", "local")
SEEDS = 20  # models that are trained side by side
WIDTH, HEADS, LAYERS = 16, 2, 3
BLANKED = 0.3  # of the nodes, at each step, so that a node is named from those around it
BATCH = 4
NEAR = 4  # places before and behind, in the version "local"
FAINT = 1e-3  # the spread of what tells a node at the start, so that nobody is named by chance
PROBES = ("leak", "reach", "gradient")


@dataclass(frozen=True)
class Club:
    """A graph whose nodes are on two sides. `order` is the node at each position of the sequence.

    >>> from maskwright.apps.graph import Club
    >>> Club([(0, 1), (1, 2)], sides=[0, 0, 1], labelled=[0, 2], order=[2, 1, 0]).others
    [1]
    """

    edges: list[tuple[int, int]]
    sides: list[int]
    labelled: list[int]
    order: list[int]

    @property
    def others(self) -> list[int]:
        """The nodes whose side is to be found out."""
        return [node for node in range(len(self.sides)) if node not in self.labelled]


class Member(nn.Module):
    """Attention over nodes, layer upon layer, without any notion of position.

    A node only looks; it has no hidden layer to think with. With four labels to learn from, that
    would learn them by heart.

    >>> import torch, maskwright as mw
    >>> from maskwright.apps.graph import Member
    >>> Member(3, mw.graph([(0, 1), (1, 2)]))(torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 2])
    """

    def __init__(self, nodes: int, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.nodes = nn.Embedding(nodes, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.looks = nn.ModuleList(MultiHeadAttention(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm, self.side = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SIDES))
        start_small(self)
        nn.init.normal_(self.nodes.weight, std=FAINT)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the sides: (B, T) → (B, T, 2). Where `keep` is False, a node is blank."""
        batch, tokens = ids.shape
        x = self.nodes(ids)  # (B, T, C)
        if keep is not None:
            x = x * keep[..., None]
        mask = bound_mask(self.mask, None, tokens, tokens, batch, HEADS)
        for norm, look in zip(self.norms, self.looks, strict=True):
            x = x + look(norm(x), mask)
        logits: torch.Tensor = self.side(self.norm(x))
        return logits

    def weights(self, ids: torch.Tensor) -> torch.Tensor:
        """Softmax weights of the first layer, averaged over heads: (B, T) → (B, T, T)."""
        first, x = self.looks[0], self.norms[0](self.nodes(ids))
        q, k = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (B, H, T, head_size)
            for layer in (first.query, first.key)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (B, H, T, T)
        visible = torch.from_numpy(self.mask.on(ids.shape[1]).dense()).to(ids.device)
        weights: torch.Tensor = masked_softmax(scores, visible)[0]
        return weights.mean(1)


class Members(nn.Module):
    """The same model from several seeds: (B, T) → (B, T, seeds, 2)."""

    def __init__(self, nodes: int, mask: Mask, seed: int) -> None:
        super().__init__()
        self.members = nn.ModuleList()
        for number in range(SEEDS):
            torch.manual_seed(seed * SEEDS + number)
            self.members.append(Member(nodes, mask))

    def forward(self, ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """What each of them says."""
        return torch.stack([member(ids, keep) for member in self.members], dim=2)


class GraphTask:
    """A club, the sides of a few of its nodes, and models that are to name the rest."""

    name = "graph"

    def __init__(self, version: str, club: Club, mask: Mask, batch: int, seed: int) -> None:
        self.version, self.club, self.mask, self.size, self.seed = version, club, mask, batch, seed
        self.ids = torch.tensor([club.order])
        self.model = Members(len(club.sides), mask, seed)

    def config(self) -> dict[str, Any]:
        """The whole club, so that a checkpoint needs nothing else."""
        return {
            "version": self.version,
            "mask": repr(self.mask),
            "batch": self.size,
            "seed": self.seed,
            **asdict(self.club),
        }

    def batch(self, step: int, part: int) -> torch.Tensor:
        """Which nodes are not blank, (B, T)."""
        shape = (self.size, self.ids.shape[1])
        return torch.rand(shape, generator=seeded(self.seed, step, part)) >= BLANKED

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """How surprised the models are by the sides of the labelled nodes, in nats."""
        ids, keep = self.ids.expand(len(batch), -1).to(self.device), batch.to(self.device)
        return self._surprise(self.model(ids, keep))

    def tokens(self, batch: torch.Tensor) -> int:
        """Nodes of a batch."""
        return int(batch.numel())

    def evaluate(self) -> float:
        """The loss with no node blank, on the labelled ones: the others are for the report only."""
        with torch.no_grad():
            return float(self._surprise(self.model(self.ids.to(self.device))))

    def chances(self) -> torch.Tensor:
        """How likely each seed's model thinks each side, by node: (nodes, seeds, 2)."""
        self.model.eval()
        with torch.no_grad():
            found: torch.Tensor = self.model(self.ids.to(self.device))[0].softmax(-1).cpu()
        return found[self.ids[0].argsort()]

    def accuracies(self) -> list[float]:
        """The share of the other nodes that each seed's model names rightly."""
        others, sides = self.club.others, torch.tensor(self.club.sides)
        right = self.chances()[others].argmax(-1) == sides[others, None]  # (others, seeds)
        return [float(share) for share in right.double().mean(0)]

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(self.model.parameters()).device

    def _surprise(self, logits: torch.Tensor) -> torch.Tensor:
        places = self.ids[0].argsort()[self.club.labelled]
        told = logits[:, places]  # (B, labelled, seeds, 2)
        sides = torch.tensor(self.club.sides, device=logits.device)[self.club.labelled]
        return cross_entropy(
            told.flatten(0, 2), sides[None, :, None].expand(told.shape[:3]).flatten()
        )


class Graph:
    """Names the sides of a club's members from four of them."""

    name = "graph"
    summary = "attention along edges: the sides of a karate club, from four members who told theirs"
    versions = VERSIONS

    def course(self, wishes: Wishes) -> Course:
        """Some seconds. The models are apart, so that clipping, which is over all, is left out."""
        return Course(steps=100, rate=5e-4, warmup=1, clip=1e3, evaluate_every=25, seed=wishes.seed)

    def task(self, wishes: Wishes) -> GraphTask:
        """The club, in the order and under the mask of the version."""
        version = version_of(self.name, self.versions, wishes.version)
        if wishes.text is not None or wishes.pairs is not None or wishes.data is not None:
            raise ArgumentError(
                "graph knows the karate club only. Leave --text, --pairs, --data out."
            )
        club = karate_club(by_neighbours=version == "local")
        own = {"graph": graph(club.edges), "everything": everything(), "local": window(NEAR, NEAR)}
        mask = wishes.mask_or(own[version])
        return GraphTask(version, club, mask, wishes.batch or BATCH, wishes.seed)

    def again(self, progress: Progress) -> GraphTask:
        """The club and the models of a checkpoint."""
        held = progress.config
        edges = [(int(one), int(other)) for one, other in held["edges"]]
        club = Club(edges, held["sides"], held["labelled"], held["order"])
        return GraphTask(held["version"], club, parse(held["mask"]), held["batch"], held["seed"])

    def sample(self, task: GraphTask) -> str:
        """How many are named rightly by now."""
        return f"accuracy {np.mean(task.accuracies()):.2f} on the others"

    def report(self, task: GraphTask) -> Iterator[str]:
        """The accuracy over the seeds, who is named wrongly, the mask, and whether it is obeyed."""
        club, found = task.club, task.accuracies()
        told = "; ".join(
            f"{side}: {', '.join(str(n) for n in club.labelled if club.sides[n] == number)}"
            for number, side in enumerate(SIDES)
        )
        yield (
            f"accuracy {np.mean(found):.2f} on {len(club.others)} nodes from {len(club.labelled)} "
            f"labelled ones ({told}); over {SEEDS} seeds from {min(found):.2f} to {max(found):.2f}"
        )
        larger = max(club.sides.count(number) for number in range(len(SIDES)))
        yield f"always naming the larger side: {larger / len(club.sides):.2f}"
        named = task.chances().mean(1).argmax(-1).tolist()
        wrong = [node for node in club.others if named[node] != club.sides[node]]
        yield f"named wrongly by the seeds together: {', '.join(map(str, wrong)) or 'nobody'}"
        yield str(
            picture(task.mask.on(len(club.order)), form="text", tokens=list(map(str, club.order)))
        )
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: GraphTask, honest: GraphTask) -> tuple[str, float]:
        """The share of the other nodes that are named rightly, over all seeds."""
        del honest
        return "accuracy on the nodes that told nothing", float(np.mean(task.accuracies()))

    def use(self, task: GraphTask, prompt: Prompt) -> Iterator[str]:
        """The side of each node asked for, and whom the models looked at to tell it."""
        most = 5 if prompt.count is None else prompt.count
        if most < 1:
            raise ArgumentError(f"count={most} shows no node. Give 1 or more.")
        chances, shares = task.chances().mean(1), looks(task)
        for node in read_nodes(prompt.text, len(task.club.sides)):
            side = int(chances[node].argmax())
            truth = SIDES[task.club.sides[node]]
            yield (
                f"node {node} goes with {SIDES[side]} ({float(chances[node, side]):.0%}); "
                f"in truth with {truth}{', which was told' if node in task.club.labelled else ''}"
            )
            seen = [(float(share), other) for other, share in enumerate(shares[node]) if share > 0]
            seen.sort(key=lambda pair: (-pair[0], pair[1]))
            shown = ", ".join(f"{other} ({share:.0%})" for share, other in seen[:most])
            yield (
                f"  it looked at {len(seen)} nodes, most at {shown}" if seen else "  it saw nobody"
            )


def karate_club(*, by_neighbours: bool = False) -> Club:
    """Zachary's karate club; the two best-known of each side have told theirs.

    By neighbours, the order is that of reverse Cuthill and McKee, which puts those who know each
    other at places that are near.

    >>> from maskwright.apps.graph import karate_club
    >>> len(karate_club().edges), karate_club().labelled
    (78, [0, 2, 32, 33])
    """
    with require("graph"):
        import networkx as nx  # type: ignore[import-untyped, unused-ignore]
    found = nx.karate_club_graph()
    nodes = sorted(found)
    sides = [SIDES.index(found.nodes[node]["club"]) for node in nodes]
    known = sorted(nodes, key=lambda node: (-found.degree(node), node))
    labelled = sorted(
        node
        for number in range(len(SIDES))
        for node in [n for n in known if sides[n] == number][:2]
    )
    order = list(nx.utils.reverse_cuthill_mckee_ordering(found)) if by_neighbours else nodes
    edges = [(int(one), int(other)) for one, other in found.edges]
    return Club(edges, sides, labelled, [int(node) for node in order])


def read_nodes(text: str | None, count: int) -> list[int]:
    """The nodes that a prompt names by their numbers.

    >>> from maskwright.apps.graph import read_nodes
    >>> read_nodes("8, 30", count=34)
    [8, 30]
    """
    words = (text or "").replace(",", " ").split()
    if not words:
        raise ArgumentError(f"No node is named. Give numbers from 0 to {count - 1}, such as 8.")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) < count):
            raise ArgumentError(f"{word[:40]!r} is no node. Give a number from 0 to {count - 1}.")
    return [int(word) for word in words]


def looks(task: GraphTask) -> torch.Tensor:
    """How much each node looks at each other in the first layer, over seeds and heads, by node."""
    places = task.ids[0].argsort()
    with torch.no_grad():
        ids = task.ids.to(task.device)
        shares = torch.stack([member.weights(ids)[0] for member in task.model.members]).mean(0)
    return shares.cpu()[places][:, places]


def audited(task: GraphTask) -> AuditReport:
    """Do the models see what their mask allows in so many layers, and no more?"""
    ids = task.ids.to(task.device)
    return audit(task.model, ids, expects=task.mask, layers=LAYERS, probes=PROBES)
