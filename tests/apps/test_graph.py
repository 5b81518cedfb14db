from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import graph
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import load_progress, load_weights
from maskwright.apps.training import Course, train

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = graph.Graph()
FEW = 4  # seeds, in place of the app's many
SHORT = Course(steps=25, rate=3e-3, warmup=1, clip=1e3, evaluate_every=25, device="cpu")


@pytest.fixture(scope="module", autouse=True)
def few_seeds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "SEEDS", FEW)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[graph.GraphTask, Path, float]:
    task, folder = APP.task(Wishes()), tmp_path_factory.mktemp("graph")
    before = task.evaluate()
    train(task, SHORT, folder)
    return task, folder, before


@pytest.fixture(scope="module")
def task(trained: tuple[graph.GraphTask, Path, float]) -> graph.GraphTask:
    return trained[0]


def test_the_club_has_two_sides_and_two_of_each_have_told() -> None:
    club = graph.karate_club()
    assert (len(club.sides), len(club.edges), sum(club.sides)) == (34, 78, 17)
    assert sum(club.sides[node] for node in club.labelled) == 2
    assert not set(club.labelled) & set(club.others)
    assert sorted(club.labelled + club.others) == list(range(34))


def test_an_order_by_neighbours_brings_edges_nearer() -> None:
    plain, near = graph.karate_club(), graph.karate_club(by_neighbours=True)
    assert sorted(near.order) == plain.order

    def apart(club: graph.Club) -> float:
        places = np.argsort(club.order)
        return float(np.mean([abs(places[one] - places[other]) for one, other in club.edges]))

    assert apart(near) < apart(plain) - 3


def test_training_learns_what_was_told_and_more(
    trained: tuple[graph.GraphTask, Path, float],
) -> None:
    task, _, before = trained
    assert task.evaluate() < before / 2
    assert np.mean(task.accuracies()) >= 0.75


def test_the_sides_of_the_others_are_never_trained_on() -> None:
    task, turned = APP.task(Wishes()), APP.task(Wishes())
    for node in turned.club.others:
        turned.club.sides[node] = 1 - turned.club.sides[node]
    batch = task.batch(0, 0)
    assert float(task.loss(batch).detach()) == float(turned.loss(batch).detach())
    assert task.evaluate() == turned.evaluate()
    turned.club.sides[turned.club.labelled[0]] ^= 1
    assert task.evaluate() != turned.evaluate()


def test_a_batch_depends_on_seed_step_and_part_only(task: graph.GraphTask) -> None:
    first = task.batch(3, 1)
    assert (task.batch(3, 1) == first).all()
    assert not (task.batch(4, 1) == first).all()
    assert not (task.batch(3, 0) == first).all()


def test_a_checkpoint_says_the_same(trained: tuple[graph.GraphTask, Path, float]) -> None:
    task, folder, _ = trained
    again = APP.again(load_progress(folder / "best", "graph"))
    load_weights(folder / "best", again.model)
    assert (again.mask, again.club) == (task.mask, task.club)
    torch.testing.assert_close(again.chances(), task.chances())


@pytest.mark.parametrize("version", graph.VERSIONS)
def test_every_version_obeys_its_mask(version: str) -> None:
    graph.audited(APP.task(Wishes(version=version))).assert_ok()


def test_a_model_that_sees_more_than_its_edges_is_found() -> None:
    cheat = APP.task(Wishes(version="everything"))
    cheat.mask = mw.graph(cheat.club.edges)
    assert not graph.audited(cheat).ok


def test_order_changes_nothing_where_the_mask_goes_with_it(task: graph.GraphTask) -> None:
    ids = torch.arange(34)
    order = torch.randperm(34, generator=torch.Generator().manual_seed(0))
    places = order.argsort()
    edges = [(int(places[one]), int(places[other])) for one, other in task.club.edges]
    other = graph.Member(34, mw.graph(edges))
    own = task.model.members[0]
    other.load_state_dict(own.state_dict())
    torch.testing.assert_close(other(order[None])[0], own(ids[None])[0][order])


def test_weights_are_shared_out_along_the_edges(task: graph.GraphTask) -> None:
    shares = task.model.members[0].weights(torch.arange(34)[None])[0]
    assert ((shares > 0) == torch.from_numpy(task.mask.on(34).dense()[0, 0])).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(34))


def test_weights_mix_the_values_as_the_layer_does(task: graph.GraphTask) -> None:
    """With one value for both heads, the mean of their weights is all that the layer uses."""
    member, ids = graph.Member(34, task.mask), torch.arange(34)[None]
    layer, half = member.looks[0], graph.WIDTH // graph.HEADS
    with torch.no_grad():
        layer.query.weight.mul_(50)
        layer.value.weight[half:] = layer.value.weight[:half]
        layer.mix.weight.copy_(torch.eye(half).repeat(2, 2) / graph.HEADS)
        x = member.norms[0](member.nodes(ids))
        found = layer(x, task.mask.on(34, batch=1, heads=graph.HEADS))[0, :, :half]
        values = layer.value(x)[0, :, :half]
        torch.testing.assert_close(member.weights(ids)[0] @ values, found)


def test_the_report_tells_all_seeds_and_ends_with_the_audit(task: graph.GraphTask) -> None:
    figures, larger, wrong, grid, audit = APP.report(task)
    assert "from 4 labelled ones (Mr. Hi: 0, 2; Officer: 32, 33)" in figures
    assert f"accuracy {np.mean(task.accuracies()):.2f} on 30 nodes" in figures
    assert larger.endswith("0.50")
    assert wrong.startswith("named wrongly")
    assert "34 queries × 34 keys" in grid
    assert audit.startswith("Members respects graph")


def test_use_tells_the_side_and_the_neighbours(task: graph.GraphTask) -> None:
    lines = list(APP.use(task, Prompt(text="33, 11", count=9)))
    assert lines[0].startswith("node 33 goes with Officer")
    assert lines[0].endswith("which was told")
    assert lines[2].startswith("node 11 goes with")
    assert lines[3].startswith("  it looked at 2 nodes, most at ")
    assert {"0", "11"} == {part.split(" (")[0] for part in lines[3].split(" at ")[2].split(", ")}


def test_nodes_are_named_by_number_whatever_the_order() -> None:
    local = APP.task(Wishes(version="local"))
    shares = graph.looks(local)
    places = np.argsort(local.club.order)
    near = np.abs(places[:, None] - places) <= graph.NEAR
    assert ((shares > 0).numpy() == near).all()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No node"),
        (" , ", "No node"),
        ("34", "no node"),
        ("-1", "no node"),
        ("Hi", "no node"),
    ],
)
def test_what_is_no_node_is_refused(task: graph.GraphTask, text: str | None, told: str) -> None:
    with pytest.raises(mw.ArgumentError, match=f"{told}.*from 0 to 33"):
        list(APP.use(task, Prompt(text=text)))


def test_no_neighbour_to_show_is_refused(task: graph.GraphTask) -> None:
    with pytest.raises(mw.ArgumentError, match="count=0"):
        list(APP.use(task, Prompt(text="8", count=0)))


@pytest.mark.parametrize(
    "wishes", [Wishes(version="tree"), Wishes(text=Path("a.txt")), Wishes(data="books")], ids=repr
)
def test_a_wish_it_does_not_know_is_refused(wishes: Wishes) -> None:
    with pytest.raises(mw.ArgumentError, match=r"Give one of graph|Leave --text"):
        APP.task(wishes)


def test_another_mask_takes_the_place_of_its_own() -> None:
    assert APP.task(Wishes(mask="everything()")).mask == mw.everything()
