"""Images of digits: the neighbourhood mask, generation, and files."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import Prompt, image
from maskwright.models.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module", params=image.Image.versions)
def task(request: pytest.FixtureRequest, make_task: Callable[..., Any]) -> image.Image:
    found: image.Image = make_task("image", version=request.param)
    return found


@pytest.mark.parametrize("radius", [1, 2, 3])
def test_the_neighbourhood_is_that_of_the_image_one_token_later(radius: int) -> None:
    found = image.neighbourhood(radius).on(65).dense()[0, 0]
    earlier = ~np.eye(64, dtype=bool)  # a pixel does not see itself before it is generated
    pixels = mw.image(8, 8, radius, raster=True).on(64).dense()[0, 0] & earlier
    itself = np.eye(64, k=-1, dtype=bool)  # position t holds pixel t - 1
    assert (found[:64, 1:] == (pixels | itself)).all()
    assert found[:, 0].all()


def test_the_neighbourhood_is_an_expression_for_every_length() -> None:
    mask = image.neighbourhood(2)
    assert mw.parse(repr(mask)) == mask
    whole = mask.on(64).dense()
    assert (mask.on(1, kv_len=20).dense() == whole[:, :, 19:20, :20]).all()
    for radius in (0, 4):
        with pytest.raises(mw.ArgumentError, match=f"radius={radius}"):
            image.neighbourhood(radius)


def test_nothing_held_out_is_trained_on(task: image.Image) -> None:
    training, held_out = (
        {row.numpy().tobytes() for row in x} for x in (task.training, task.held_out)
    )
    assert not training & held_out
    assert (len(task.training), len(task.held_out)) == (1437, 360)
    assert 0.5 < task.independent_loss() < np.log(image.NUM_SHADES) - 0.5


def test_pixel_by_pixel_equals_one_pass(task: image.Image) -> None:
    images = task.generate([3, 8], SamplingParams(temperature=0))
    digits = torch.tensor([[image.NUM_SHADES + 3], [image.NUM_SHADES + 8]])
    ids = torch.cat([digits, torch.from_numpy(images).reshape(2, 64)], dim=1)
    with torch.no_grad():
        logits = task.model(ids[:, :-1])[..., : image.NUM_SHADES]
    chosen = logits.gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(chosen, logits.amax(-1), atol=1e-4, rtol=0)


def test_the_classifier_recognises_real_digits(
    task: image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = task.held_out[:, 0] - image.NUM_SHADES
    rows = [torch.nonzero(labels == digit)[: image.NUM_SCORED, 0] for digit in range(10)]
    real = task.held_out[torch.cat(rows), 1:].numpy().reshape(-1, 8, 8)
    monkeypatch.setattr(task, "generate", lambda *_: real)
    held_out, generated = task.recognised()
    assert held_out > 0.97
    assert generated > 0.94


def test_a_prediction_is_text_and_its_png_is_reproducible(
    task: image.Image, tmp_path: Path
) -> None:
    path, prompt = tmp_path / "sheet.png", Prompt(text="31 4", num_samples=2, seed=5)
    contents = []
    for _ in range(2):
        lines = list(task.predict(prompt))
        assert [len(line) for line in lines] == [16] * 8
        task.save_prediction(path, lines)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]
    task.save_prediction(tmp_path / "SHEET.PNG", lines)
    assert (tmp_path / "SHEET.PNG").read_bytes() == contents[0]
    task.save_prediction(tmp_path / "SHEET.JSON", lines)
    assert json.loads((tmp_path / "SHEET.JSON").read_text())["output"] == lines


def test_the_png_has_a_row_for_each_digit() -> None:
    from matplotlib.image import imread

    images = np.zeros((2, 3, 8, 8), np.int64)
    images[1, 2] = 16
    found = imread(io.BytesIO(image.png(images, scale=1)))[..., 0]
    assert found.shape == (2 * 9 - 1, 3 * 9 - 1)
    assert (found[:8, :8] == 1).all()
    assert (found[9:, 18:] == 0).all()
