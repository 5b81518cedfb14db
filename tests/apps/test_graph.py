"""Attention along the edges of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import Prompt, graph
from maskwright.apps.trainer import TrainingConfig, train

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = TrainingConfig(
    25, learning_rate=3e-3, warmup_steps=1, grad_clip=1e3, eval_interval=25, device="cpu"
)


@pytest.fixture(scope="module")
def task(make_task: Callable[..., Any]) -> graph.Graph:
    found: graph.Graph = make_task("graph")
    before = found.evaluate()
    train(found, CONFIG)
    assert found.evaluate() < before / 2
    return found


def test_the_club_has_two_sides_with_two_labels_each() -> None:
    club = graph.karate_club()
    assert (len(club.sides), len(club.edges), sum(club.sides)) == (34, 78, 17)
    assert sum(club.sides[node] for node in club.labelled) == 2
    assert sorted(club.labelled + club.unlabelled) == list(range(34))


def test_the_order_by_neighbours_shortens_edges() -> None:
    plain, near = graph.karate_club(), graph.karate_club(by_neighbours=True)
    assert sorted(near.order) == plain.order

    def distance(club: graph.Club) -> float:
        position = np.argsort(club.order)
        return float(np.mean([abs(position[one] - position[other]) for one, other in club.edges]))

    assert distance(near) < distance(plain) - 3


def test_unlabelled_nodes_are_predicted_and_never_trained_on(
    task: graph.Graph, make_task: Callable[..., Any]
) -> None:
    assert np.mean(task.accuracies()) >= 0.75
    one, other = make_task("graph"), make_task("graph")
    for node in other.club.unlabelled:
        other.club.sides[node] = 1 - other.club.sides[node]
    batch = one.batch(0, 0)
    assert float(one.loss(batch).detach()) == float(other.loss(batch).detach())
    assert one.evaluate() == other.evaluate()
    other.club.sides[other.club.labelled[0]] ^= 1
    assert one.evaluate() != other.evaluate()


def test_the_order_does_not_matter_if_the_mask_follows_it(task: graph.Graph) -> None:
    ids = torch.arange(34)
    order = torch.randperm(34, generator=torch.Generator().manual_seed(0))
    position = order.argsort()
    edges = [(int(position[one]), int(position[other])) for one, other in task.club.edges]
    other, own = graph.NodeClassifier(34, mw.graph(edges)), task.model.models[0]
    other.load_state_dict(own.state_dict())
    torch.testing.assert_close(other(order[None])[0], own(ids[None])[0][order])


def test_attention_weights_follow_the_edges(task: graph.Graph) -> None:
    weights = task.model.models[0].attention_weights(torch.arange(34)[None])[0]
    assert task.mask is not None
    assert ((weights > 0) == torch.from_numpy(task.mask.on(34).dense()[0, 0])).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(34))


def test_attention_weights_are_those_of_the_layer(task: graph.Graph) -> None:
    """With the same values in both heads, the layer uses the mean of their weights."""
    assert task.mask is not None
    model, ids = graph.NodeClassifier(34, task.mask), torch.arange(34)[None]
    attn, half = model.attns[0], graph.N_EMBD // graph.N_HEAD
    with torch.no_grad():
        attn.q_proj.weight.mul_(50)
        attn.v_proj.weight[half:] = attn.v_proj.weight[:half]
        attn.out_proj.weight.copy_(torch.eye(half).repeat(2, 2) / graph.N_HEAD)
        x = model.norms[0](model.node_embedding(ids))
        found = attn(x, task.mask)[0, :, :half]
        values = attn.v_proj(x)[0, :, :half]
        torch.testing.assert_close(model.attention_weights(ids)[0] @ values, found)


def test_a_prediction_names_side_and_neighbours(task: graph.Graph) -> None:
    lines = list(task.predict(Prompt(text="33, 11", top_k=9)))
    assert lines[0].startswith("node 33: Officer")
    assert lines[0].endswith("labelled")
    assert lines[2].startswith("node 11: ")
    assert lines[3].startswith("  attends to 2 nodes, most to ")
    assert {"0", "11"} == {part.split(" (")[0] for part in lines[3].split(" to ")[2].split(", ")}


def test_nodes_are_numbered_alike_in_every_order(make_task: Callable[..., Any]) -> None:
    local = make_task("graph", version="local")
    position = np.argsort(local.club.order)
    near = np.abs(position[:, None] - position) <= graph.WINDOW
    assert ((local.attention_weights() > 0).numpy() == near).all()
