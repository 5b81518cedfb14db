"""Attention along the edges of a graph: which side the members of a club take when it splits.

Zachary's karate club has 34 members and 78 friendships. The sides of four members are known; the
others are predicted. With 34 tokens the result varies, so small models of several seeds are trained
together and the report has all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from maskwright._optional_deps import require
from maskwright.apps import Prompt, Task
from maskwright.apps.trainer import TrainingConfig, step_generator
from maskwright.core.atoms import everything, graph, window
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError
from maskwright.models.attention import MultiHeadAttention
from maskwright.models.transformer import init_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maskwright.core.expr import Mask

SIDES = ("Mr. Hi", "Officer")
NUM_SEEDS = 20  # models that are trained together
N_EMBD, N_HEAD, N_LAYER = 16, 2, 3
NODE_DROPOUT = 0.3  # share of embeddings set to 0, so that a node is predicted from its neighbours
WINDOW = 4  # positions on either side, in the version "local"
INIT_STD = 1e-3  # of the node embeddings: at first all nodes are equal


@dataclass(frozen=True)
class Club:
    """A graph with two sides. `order` has the node at each position of the sequence.

    >>> from maskwright.apps.graph import Club
    >>> Club([(0, 1), (1, 2)], sides=[0, 0, 1], labelled=[0, 2], order=[2, 1, 0]).unlabelled
    [1]
    """

    edges: list[tuple[int, int]]
    sides: list[int]
    labelled: list[int]
    order: list[int]

    @property
    def unlabelled(self) -> list[int]:
        """The nodes to predict."""
        return [node for node in range(len(self.sides)) if node not in self.labelled]


class NodeClassifier(nn.Module):
    """Attention layers over nodes, without position embeddings and MLPs.

    With four labels to learn from, an MLP would memorise them.

    >>> import torch, maskwright as mw
    >>> from maskwright.apps.graph import NodeClassifier
    >>> NodeClassifier(3, mw.graph([(0, 1), (1, 2)]))(torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 2])
    """

    def __init__(self, num_nodes: int, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.node_embedding = nn.Embedding(num_nodes, N_EMBD)
        self.norms = nn.ModuleList(nn.LayerNorm(N_EMBD) for _ in range(N_LAYER))
        self.attns = nn.ModuleList(MultiHeadAttention(N_EMBD, N_HEAD) for _ in range(N_LAYER))
        self.ln_f, self.head = nn.LayerNorm(N_EMBD), nn.Linear(N_EMBD, len(SIDES))
        init_weights(self)
        nn.init.normal_(self.node_embedding.weight, std=INIT_STD)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of the sides: (B, T) → (B, T, 2). Embeddings are 0 where `keep` is False."""
        x = self.node_embedding(ids)  # (B, T, C)
        if keep is not None:
            x = x * keep[..., None]
        for norm, attn in zip(self.norms, self.attns, strict=True):
            x = x + attn(norm(x), self.mask)
        logits: torch.Tensor = self.head(self.ln_f(x))
        return logits

    def attention_weights(self, ids: torch.Tensor) -> torch.Tensor:
        """Softmax weights of the first layer, averaged over heads: (B, T) → (B, T, T)."""
        attn, x = self.attns[0], self.norms[0](self.node_embedding(ids))
        q, k = (
            layer(x).unflatten(-1, (N_HEAD, -1)).transpose(1, 2)  # (B, H, T, head_dim)
            for layer in (attn.q_proj, attn.k_proj)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (B, H, T, T)
        visible = torch.from_numpy(self.mask.on(ids.shape[1]).dense()).to(ids.device)
        weights: torch.Tensor = masked_softmax(scores, visible)[0]
        return weights.mean(1)


class Ensemble(nn.Module):
    """The same model from several seeds: (B, T) → (B, T, seeds, 2)."""

    def __init__(self, num_nodes: int, mask: Mask, seed: int) -> None:
        super().__init__()
        self.models = nn.ModuleList()
        for number in range(NUM_SEEDS):
            torch.manual_seed(seed * NUM_SEEDS + number)
            self.models.append(NodeClassifier(num_nodes, mask))

    def forward(self, ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """The logits of each model."""
        return torch.stack([model(ids, keep) for model in self.models], dim=2)


class Graph(Task):
    """Predicts the side of each member from four labelled ones."""

    name = "graph"
    summary = "attention along edges: the sides of a karate club, from four labelled members"
    versions = ("graph", "everything", "local")
    # The models are independent, so gradient clipping over all of them is disabled.
    default_training = TrainingConfig(
        100, learning_rate=5e-4, warmup_steps=1, grad_clip=1e3, eval_interval=25
    )
    default_batch_size = 4
    model_config: ClassVar[dict[str, Any]] = {}  # the sizes are constants of this module

    model: Ensemble
    club: Club

    def load_data(self) -> None:
        """The club, in the order of the version."""
        self.club = karate_club(by_neighbours=self.version == "local")

    def default_mask(self) -> Mask:
        """The mask of the version."""
        if self.version == "graph":
            return graph(self.club.edges)
        return everything() if self.version == "everything" else window(WINDOW, WINDOW)

    def make_model(self, config: dict[str, Any]) -> Ensemble:  # noqa: ARG002
        """Models of `NUM_SEEDS` seeds."""
        assert self.mask is not None
        self.ids = torch.tensor([self.club.order])
        return Ensemble(len(self.club.sides), self.mask, self.options.seed)

    def config(self) -> dict[str, Any]:
        """With the whole club, so that a checkpoint needs no data."""
        return {**super().config(), "club": asdict(self.club)}

    def restore(self, config: Mapping[str, Any]) -> None:
        """Sets the attributes that `config` describes."""
        club = config["club"]
        edges = [(int(a), int(b)) for a, b in club["edges"]]
        self.club = Club(edges, club["sides"], club["labelled"], club["order"])
        super().restore(config)

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        """Which node embeddings are kept, (B, T)."""
        shape = (self.batch_size, self.ids.shape[1])
        generator = step_generator(self.options.seed, step, micro_step)
        return torch.rand(shape, generator=generator) >= NODE_DROPOUT

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the labelled nodes, over all models."""
        ids, keep = self.ids.expand(len(batch), -1).to(self.device), batch.to(self.device)
        return self._labelled_loss(self.model(ids, keep))

    def num_tokens(self, batch: torch.Tensor) -> int:
        """Nodes of a batch."""
        return int(batch.numel())

    def evaluate(self) -> float:
        """The loss of the labelled nodes, without dropout; the others are for the report only."""
        with torch.no_grad():
            return float(self._labelled_loss(self.model(self.ids.to(self.device))))

    def probabilities(self) -> torch.Tensor:
        """The probability of each side, by node and seed: (nodes, seeds, 2)."""
        self.model.eval()
        with torch.no_grad():
            probs: torch.Tensor = self.model(self.ids.to(self.device))[0].softmax(-1).cpu()
        return probs[self.ids[0].argsort()]

    def accuracies(self) -> list[float]:
        """The accuracy of each seed's model on the unlabelled nodes."""
        nodes, sides = self.club.unlabelled, torch.tensor(self.club.sides)
        correct = self.probabilities()[nodes].argmax(-1) == sides[nodes, None]  # (nodes, seeds)
        return [float(share) for share in correct.double().mean(0)]

    @property
    def num_layers(self) -> int:
        """Attention layers, over which the reach of a mask grows."""
        return N_LAYER

    def sample(self) -> str:
        """The accuracy so far."""
        return f"accuracy {np.mean(self.accuracies()):.2f} on the unlabelled nodes"

    def report(self) -> Iterator[str]:
        """The accuracy over all seeds, that of the majority class, the errors, and the mask."""
        from maskwright.draw.picture import picture

        club, accuracies = self.club, self.accuracies()
        labels = "; ".join(
            f"{side}: {', '.join(str(n) for n in club.labelled if club.sides[n] == number)}"
            for number, side in enumerate(SIDES)
        )
        yield (
            f"accuracy {np.mean(accuracies):.2f} on {len(club.unlabelled)} nodes from "
            f"{len(club.labelled)} labelled ones ({labels}); "
            f"over {NUM_SEEDS} seeds from {min(accuracies):.2f} to {max(accuracies):.2f}"
        )
        majority = max(club.sides.count(number) for number in range(len(SIDES)))
        yield f"majority class: {majority / len(club.sides):.2f}"
        predicted = self.probabilities().mean(1).argmax(-1).tolist()
        wrong = [node for node in club.unlabelled if predicted[node] != club.sides[node]]
        yield f"misclassified by the mean over seeds: {', '.join(map(str, wrong)) or 'none'}"
        assert self.mask is not None
        bound, tokens = self.mask.on(len(club.order)), [str(node) for node in club.order]
        yield str(picture(bound, form="text", tokens=tokens))

    def score_generation(self, reference: Any) -> tuple[str, float]:  # noqa: ARG002
        """The mean accuracy on the unlabelled nodes."""
        return "accuracy on the unlabelled nodes", float(np.mean(self.accuracies()))

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The side of each node, and the nodes with the largest attention weights."""
        top_k = 5 if prompt.top_k is None else prompt.top_k
        if top_k < 1:
            raise ArgumentError(f"top_k={top_k}: expected 1 or more nodes.")
        probs, weights = self.probabilities().mean(1), self.attention_weights()
        for node in parse_nodes(prompt.text, len(self.club.sides)):
            side, truth = int(probs[node].argmax()), SIDES[self.club.sides[node]]
            yield (
                f"node {node}: {SIDES[side]} ({float(probs[node, side]):.0%}); "
                f"true side {truth}{', labelled' if node in self.club.labelled else ''}"
            )
            seen = [(float(weight), n) for n, weight in enumerate(weights[node]) if weight > 0]
            seen.sort(key=lambda pair: (-pair[0], pair[1]))
            shown = ", ".join(f"{other} ({weight:.0%})" for weight, other in seen[:top_k])
            yield f"  attends to {len(seen)} nodes{', most to ' + shown if seen else ''}"

    def attention_weights(self) -> torch.Tensor:
        """Softmax weights of the first layer by node, averaged over seeds and heads."""
        position = self.ids[0].argsort()
        with torch.no_grad():
            ids = self.ids.to(self.device)
            weights = [model.attention_weights(ids)[0] for model in self.model.models]
        return torch.stack(weights).mean(0).cpu()[position][:, position]

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """The nodes themselves."""
        assert self.mask is not None
        return self.model, self.ids.to(self.device), {None: self.mask}

    def _labelled_loss(self, logits: torch.Tensor) -> torch.Tensor:
        positions = self.ids[0].argsort()[self.club.labelled]
        labelled = logits[:, positions]  # (B, labelled, seeds, 2)
        sides = torch.tensor(self.club.sides, device=logits.device)[self.club.labelled]
        return cross_entropy(
            labelled.flatten(0, 2), sides[None, :, None].expand(labelled.shape[:3]).flatten()
        )


def karate_club(*, by_neighbours: bool = False) -> Club:
    """Zachary's karate club; the two members of each side with the most friends are labelled.

    With `by_neighbours` the order is reverse Cuthill–McKee, which puts friends close together.

    >>> from maskwright.apps.graph import karate_club
    >>> len(karate_club().edges), karate_club().labelled
    (78, [0, 2, 32, 33])
    """
    with require("graph"):
        import networkx as nx
    club = nx.karate_club_graph()
    nodes = sorted(club)
    sides = [SIDES.index(club.nodes[node]["club"]) for node in nodes]
    by_degree = sorted(nodes, key=lambda node: (-club.degree(node), node))
    labelled = sorted(
        node
        for number in range(len(SIDES))
        for node in [n for n in by_degree if sides[n] == number][:2]
    )
    order = list(nx.utils.reverse_cuthill_mckee_ordering(club)) if by_neighbours else nodes
    edges = [(int(a), int(b)) for a, b in club.edges]
    return Club(edges, sides, labelled, [int(node) for node in order])


def parse_nodes(text: str | None, count: int) -> list[int]:
    """The nodes of a prompt.

    >>> from maskwright.apps.graph import parse_nodes
    >>> parse_nodes("8, 30", count=34)
    [8, 30]
    """
    words = (text or "").replace(",", " ").split()
    if not words:
        raise ArgumentError(f"The prompt is empty. Pass nodes from 0 to {count - 1}, such as 8.")
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) < count):
            raise ArgumentError(f"expected nodes from 0 to {count - 1}, got {word[:40]!r}.")
    return [int(word) for word in words]
