"""Four applications that live by masks: translation, summaries, dialogue and the drawing of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.apps import Task, TaskOptions, find_app
from maskwright.apps.dialogue import Example, pack
from maskwright.apps.image import NUM_PIXELS, NUM_SHADES
from maskwright.apps.seq2seq import collate
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


def make(app: type[Task], folder: Path) -> Any:
    """The application with its data: a file of pairs, or the digits that the images show."""
    if app.name not in PAIRS:
        return app(TaskOptions(batch_size=8))
    path = folder / f"{app.name}.tsv"
    path.write_text("\n".join("\t".join(pair) for pair in PAIRS[app.name]), encoding="utf-8")
    return app(TaskOptions(pairs=path, batch_size=8))


@pytest.mark.parametrize("name", ["translation", "summarisation"])
def test_d4_encoder_decoder_apps_use_three_masks(name: str, tmp_path: Path) -> None:
    """The encoder leaves filler out, and so does cross-attention; the decoder sees its past.

    Real pairs of the application, of different lengths: which places are filler, the data says.
    """
    task = make(find_app(name), tmp_path)
    pairs = sorted(task.dataset.training, key=lambda pair: len(pair[0]))
    batch = collate([pairs[0], pairs[-1]])
    lengths = (batch.source != 0).sum(1).tolist()
    assert lengths[0] < lengths[1]

    real = mw.padding(lengths=lengths)
    for call in mw.trace(task.model, batch.source, batch.target, batch.source_padding):
        decodes = call.layer.startswith("decoder") and not call.cross
        assert call.mask == (mw.causal() if decodes else real)


def test_d4_reply_sees_prompt_and_past(tmp_path: Path) -> None:
    """Two packed examples do not see each other. A prompt is read in both directions.

    No encoder is needed for that: within a prompt all is seen, and within a reply the past.
    """
    task = make(find_app("dialogue"), tmp_path)
    begin = 1
    examples = [Example(prompt=[7, 8], reply=[9, 10]), Example(prompt=[5], reply=[6])]
    rows = pack(examples, 1, 8)
    assert rows.ids.tolist() == [[7, 8, begin, 9, 10, 5, begin, 6]]
    for call in mw.trace(task.packed_model, **rows.inputs(torch.device("cpu"))):
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


def test_d4_pixels_depend_on_earlier_pixels(tmp_path: Path) -> None:
    """An image is a sequence too: the digit's name, and then 64 pixels, line by line.

    Blacken the lower half, and nothing that draws the upper half moves.
    """
    model = make(find_app("image"), tmp_path).model.eval()
    ids = torch.zeros(1, NUM_PIXELS, dtype=torch.long)
    ids[0, 0] = NUM_SHADES + 3  # "a three, please"
    for call in mw.trace(model, ids):
        assert call.mask == mw.causal()

    black = ids.clone()
    black[0, 33:] = NUM_SHADES - 1
    with torch.no_grad():
        moved = (model(ids) - model(black)).abs().amax(-1)[0]
    assert not moved[:33].any()
    assert moved[33:].all()


def test_d4_causal_mask_does_not_prevent_repetition() -> None:
    """It is sometimes said to, for what was written is seen, and need not be written again.

    The mask decides what may be seen, and not what is made of it. An untrained model with it says
    a word or two over and over; to change that is for training.
    """
    torch.manual_seed(0)
    model = Seq2Seq(Seq2SeqConfig(20, 20, block_size=12, n_embd=16, n_head=2, n_layer=1)).eval()
    source = torch.randint(3, 20, (1, 6))
    said = model.generate(source, 10)
    assert said.shape == (1, 10)
    assert len(said.unique()) <= 3
    mw.audit(lambda ids: model(source, ids), said, expects="causal", probes=["leak"]).assert_ok()
