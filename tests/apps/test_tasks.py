"""What holds for every application: batches, learning, checkpoints, masks, reports and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.apps import APPS, Prompt, Task, TaskOptions, find_app
from maskwright.apps.checkpoint import TrainingState, load_model, load_state
from maskwright.apps.trainer import TrainingConfig, train

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPTS = {
    "language": Prompt(text="the ", max_new_tokens=20, seed=1),
    "translation": Prompt(text="forty-two\n\none thousand", num_beams=2),
    "summarisation": Prompt(text="All values are added.\nThe sum is returned.", num_beams=2),
    "dialogue": Prompt(text="¿Quién eres?", max_new_tokens=8, temperature=1.0, seed=4),
    "image": Prompt(text="31", num_samples=2, seed=5),
    "graph": Prompt(text="33, 11", top_k=9),
    "masked-lm": Prompt(text="The ___ of the list is <mask>."),
}
BAD_PROMPTS = {
    "language": [(Prompt(text="中"), "'中'"), (Prompt(text="the " * 40), "160 tokens")],
    "translation": [(Prompt(text=" \n"), "is empty")],
    "summarisation": [(Prompt(text=" \n"), "is empty")],
    "dialogue": [(Prompt(text=" "), "empty")],
    "image": [
        *((Prompt(text=text), says) for text, says in (("3a", "'3a'"), ("٣", "digits"))),
        *((Prompt(text="1", num_samples=count), "1000") for count in (0, 1001)),
    ],
    "graph": [(Prompt(text=text), "from 0 to 33") for text in (None, " , ", "34", "-1", "Hi")],
    "masked-lm": [
        (Prompt(text="no gap"), "'no gap'"),
        (Prompt(text=None), "___ or <mask>"),
        (Prompt(text="___ " * 65), "65 tokens"),
    ],
}
SHORT = TrainingConfig(24, learning_rate=4e-3, warmup_steps=2, eval_interval=12, device="cpu")


@pytest.fixture(scope="module", params=APPS)
def trained(
    request: pytest.FixtureRequest,
    make_task: Callable[..., Task],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Task, float, Path]:
    """A task after a few steps, its held-out loss before, and its folder."""
    task, folder = make_task(request.param), tmp_path_factory.mktemp(request.param)
    before = task.evaluate()
    train(task, replace(SHORT, grad_clip=1e3 if task.name == "graph" else 1.0), folder)
    return task, before, folder


def test_it_learns(trained: tuple[Task, float, Path]) -> None:
    task, before, _ = trained
    task.model.eval()
    assert task.evaluate() < before - 0.1


def test_a_checkpoint_predicts_the_same(trained: tuple[Task, float, Path]) -> None:
    task, _, folder = trained
    again = type(task).from_checkpoint(load_state(folder / "best", task.name))
    load_model(folder / "best", again.model)
    assert list(again.predict(PROMPTS[task.name])) == list(task.predict(PROMPTS[task.name]))
    assert json.loads(json.dumps(again.config()))["model"] == task.config()["model"]


def test_the_report_has_metrics_samples_and_a_score(trained: tuple[Task, float, Path]) -> None:
    task, _, _ = trained
    first, *rest = task.report()
    assert any(word in first for word in ("held-out", "accuracy"))
    assert rest
    assert task.sample()
    metric, score = task.score_generation(task)
    assert metric
    assert 0 <= score < 10


def test_the_mask_check_agrees_with_the_audit(trained: tuple[Task, float, Path]) -> None:
    task, _, _ = trained
    assert "FAILED" not in task.check_mask()
    task.audit().assert_ok()


def test_bad_prompts_are_refused(trained: tuple[Task, float, Path]) -> None:
    task, _, _ = trained
    for prompt, says in BAD_PROMPTS[task.name]:
        with pytest.raises(mw.ArgumentError, match=says):
            list(task.predict(prompt))


@pytest.mark.parametrize(
    ("name", "version", "mask"),
    [
        ("language", "v4", "window(back=4)"),
        ("language", "gpt", "window(back=4)"),
        ("graph", "everything", None),
        ("graph", "local", None),
    ],
)
def test_every_version_obeys_its_mask(
    make_task: Callable[..., Task], name: str, version: str, mask: str | None
) -> None:
    task = make_task(name, version=version, mask=mask)
    assert "FAILED" not in task.check_mask()
    task.audit().assert_ok()


@pytest.mark.parametrize(
    "name", ["language", "translation", "image", "graph", "dialogue", "masked-lm"]
)
def test_a_leak_fails_check_and_audit(make_task: Callable[..., Task], name: str) -> None:
    task = make_task(name, mask="everything()")
    task.audit().assert_ok()
    assert task.config()["mask"] == "everything()"
    wanted = mw.window(back=2) if name != "dialogue" else None
    task.mask = wanted  # the model still attends to everything
    if name == "dialogue":
        packed, inputs, expected = make_task(name).audit_inputs()
        packed.mask = mw.everything()
        task.audit_inputs = lambda: (packed, inputs, expected)  # type: ignore[method-assign]
    assert "FAILED" in task.check_mask()
    assert not task.audit().ok


@pytest.mark.parametrize("name", APPS)
def test_a_batch_depends_on_seed_step_and_micro_step_only(
    make_task: Callable[..., Task], name: str
) -> None:
    one, other = make_task(name), make_task(name)
    other.batch(0, 0)
    assert one.config() == other.config()
    first = _tensors(one.batch(7, 1))
    for mine, theirs in zip(first, _tensors(other.batch(7, 1)), strict=True):
        assert torch.equal(mine, theirs)
    for step, micro_step in ((8, 1), (7, 0)):
        found = _tensors(one.batch(step, micro_step))
        assert any(
            a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, found, strict=True)
        )


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    values = batch if isinstance(batch, tuple) else vars(batch).values()
    return [value for value in values if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", APPS)
def test_unknown_versions_and_data_are_refused(name: str) -> None:
    app = find_app(name)
    with pytest.raises(mw.ArgumentError, match=f"{name}.*'v9'.*{app.versions[0]}"):
        app(TaskOptions(version="v9"))
    refused = next(x for x in ("data", "text", "pairs") if x not in app.own_data)
    with pytest.raises(mw.ArgumentError, match=f"{name} does not accept --{refused}"):
        app(TaskOptions(**{refused: Path("x")}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"version": "v3", "mask": "causal()", "batch_size": "x", "seed": 0},
        {"version": "v3", "mask": "boom()", "batch_size": 1, "seed": 0},
        {"version": "v3", "mask": None, "batch_size": 1, "seed": 0, "tokenizer": "{}", "model": {}},
        {"version": "v3", "mask": None, "batch_size": 1, "seed": 0, "tokenizer": [], "model": 3},
    ],
)
def test_an_invalid_configuration_is_one_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(mw.MaskError) as error:
        find_app("language").from_checkpoint(TrainingState("language", config))
    assert len(str(error.value).splitlines()) == 1
