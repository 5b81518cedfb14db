"""Four applications that live by masks: translation, summaries, dialogue and the drawing of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.apps.app import App, Wishes
from maskwright.apps.image import PIXELS, SHADES
from maskwright.apps.packing import Example, pack
from maskwright.apps.registry import find_app
from maskwright.apps.training import Course, train
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = {"one": "uno", "two": "dos", "three": "tres", "four": "cuatro", "five": "cinco"}
NAMES = (
    "Ada Alan Anna Bob Carl Emmy Eva Ida John Karl Kurt Leo Lise Mary Max Nina Otto Paul Rosa Tom"
)
PAIRS = {
    "translation": [
        *NUMBERS.items(),
        *[(f"{a} and {b}", f"{NUMBERS[a]} y {NUMBERS[b]}") for a in NUMBERS for b in NUMBERS],
    ],
    "summarisation": [
        (f"Yesterday the {who} {did}{more}.", f"The {who} {did}.")
        for who in ("cat", "king", "child", "nurse")
        for did in ("slept", "sang", "ran", "fell")
        for more in ("", " in the garden", " in the kitchen, and nobody knew why")
    ],
    "dialogue": [(f"my name is {name}", f"hello {name}, how are you?") for name in NAMES.split()],
}
STEPS = {"translation": 12, "summarisation": 12, "dialogue": 8, "image": 12}


def make(app: App, folder: Path) -> Any:
    """The application with its data: a file of pairs, or the digits that the images show."""
    if app.name not in PAIRS:
        task: Any = app.task(Wishes(batch=8))
        task.held_out = task.held_out[:60]  # of 360, for speed
        return task
    path = folder / f"{app.name}.tsv"
    path.write_text("\n".join("\t".join(pair) for pair in PAIRS[app.name]), encoding="utf-8")
    return app.task(Wishes(pairs=path, batch=8))


@pytest.mark.parametrize(("name", "steps"), STEPS.items())
def test_d4_each_learns(name: str, steps: int, tmp_path: Path) -> None:
    """A few steps, and what was held out is already less of a surprise, by half a nat or more."""
    task = make(find_app(name), tmp_path)
    before = task.evaluate()
    train(task, Course(steps=steps, rate=4e-3, warmup=2, evaluate_every=steps, device="cpu"))
    assert task.evaluate() < before - 0.5


@pytest.mark.parametrize("name", ["translation", "summarisation"])
def test_d4_translation_and_summaries_have_three_masks(name: str, tmp_path: Path) -> None:
    """The encoder leaves filler out, and so does cross-attention; the decoder sees its past.

    Real pairs of the application, of different lengths: which places are filler, the data says.
    """
    task = make(find_app(name), tmp_path)
    pairs = sorted(task.training, key=lambda pair: len(pair[0]))
    batch = task.made_batch([pairs[0], pairs[-1]])
    lengths = (batch.source != 0).sum(1).tolist()
    assert lengths[0] < lengths[1]

    real = mw.padding(lengths=lengths)
    for call in mw.trace(task.model, batch.source, batch.target, batch.source_padding):
        decodes = call.layer.startswith("decoder") and not call.cross
        assert call.mask == (mw.causal() if decodes else real)


def test_d4_a_reply_sees_its_prompt_and_its_own_past(tmp_path: Path) -> None:
    """Two examples share a row, and neither sees the other. A prompt is read in both directions.

    No encoder is needed for that: within a prompt all is seen, and within a reply the past.
    """
    task = make(find_app("dialogue"), tmp_path)
    begin, end = 1, 2
    examples = [Example(prompt=[7, 8], reply=[9, 10]), Example(prompt=[5], reply=[6])]
    rows = pack(examples, 1, 8, begin, end)
    assert rows.ids.tolist() == [[7, 8, begin, 9, 10, 5, begin, 6]]
    for call in mw.trace(task.packed, **rows.inputs(torch.device("cpu"))):
        assert call.visible[0, 0].astype(int).tolist() == [
            [1, 1, 0, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 0, 0, 0],
            [0, 0, 0, 0, 0, 1, 0, 0],
            [0, 0, 0, 0, 0, 1, 1, 0],
            [0, 0, 0, 0, 0, 1, 1, 1],
        ]


def test_d4_a_pixel_is_drawn_from_those_drawn_before(tmp_path: Path) -> None:
    """An image is a sequence too: the digit's name, and then 64 pixels, line by line.

    Blacken the lower half, and nothing that draws the upper half moves.
    """
    model = make(find_app("image"), tmp_path).model.eval()
    ids = torch.zeros(1, PIXELS, dtype=torch.long)
    ids[0, 0] = SHADES + 3  # "a three, please"
    for call in mw.trace(model, ids):
        assert call.mask == mw.causal()

    black = ids.clone()
    black[0, 33:] = SHADES - 1
    with torch.no_grad():
        moved = (model(ids) - model(black)).abs().amax(-1)[0]
    assert not moved[:33].any()
    assert moved[33:].all()


def test_d4_the_mask_does_not_keep_a_text_from_repeating_itself() -> None:
    """It is sometimes said to, for what was written is seen, and need not be written again.

    The mask decides what may be seen, and not what is made of it. A new model that obeys it says
    a word or two over and over; to change that is for training.
    """
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(20, 20, context=12, width=16, heads=2, layers=1)).eval()
    source = torch.randint(3, 20, (1, 6))
    said = model.greedy(source, most=10)
    assert said.shape == (1, 10)
    assert len(said.unique()) <= 3
    mw.audit(lambda ids: model(source, ids), said, expects="causal", probes=["leak"]).assert_ok()
