from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import image
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import load_progress, load_weights
from maskwright.apps.training import Course, train
from maskwright.models.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = image.Image()
SHORT = Course(steps=12, rate=1e-2, warmup=2, evaluate_every=12, device="cpu")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """A model of two layers learns within a few steps too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "SIZE", replace(image.SIZE, width=32, heads=2, layers=2))
        yield


@pytest.fixture(scope="module", params=image.VERSIONS)
def task(request: pytest.FixtureRequest, small: None) -> image.ImageTask:
    return APP.task(Wishes(version=request.param, batch=8))


@pytest.mark.parametrize("radius", [1, 2, 3])
def test_the_neighbourhood_is_that_of_the_image_one_token_later(radius: int) -> None:
    found = image.neighbourhood(radius).on(65).dense()[0, 0]
    drawn_before = ~np.eye(64, dtype=bool)  # a pixel that is being drawn does not see itself
    pixels = mw.image(8, 8, radius, raster=True).on(64).dense()[0, 0] & drawn_before
    itself = np.eye(64, k=-1, dtype=bool)  # position t holds pixel t - 1, and always sees itself
    assert (found[:64, 1:] == (pixels | itself)).all()
    assert found[:, 0].all()


def test_the_neighbourhood_is_text_and_fits_every_frame() -> None:
    mask = image.neighbourhood(2)
    assert mw.parse(repr(mask)) == mask
    whole = mask.on(64).dense()
    assert (mask.on(1, kv_len=20).dense() == whole[:, :, 19:20, :20]).all()


@pytest.mark.parametrize("radius", [0, 4])
def test_a_radius_that_columns_cannot_tell_is_refused(radius: int) -> None:
    with pytest.raises(mw.ArgumentError, match="Give 1 to 3"):
        image.neighbourhood(radius)


def test_nothing_held_out_is_trained_on() -> None:
    digits = image.load_digits()
    seen = {row.tobytes() for row in digits.training}
    assert not seen & {row.tobytes() for row in digits.held_out}
    assert len(digits.training) + len(digits.held_out) == 1797


def test_a_batch_depends_on_seed_step_and_part_only(task: image.ImageTask) -> None:
    first = task.batch(3, 1)
    assert (task.batch(3, 1) == first).all()
    assert not (task.batch(4, 1) == first).all()
    assert not (task.batch(3, 0) == first).all()


def test_a_few_steps_learn_and_a_checkpoint_draws_the_same(
    task: image.ImageTask, tmp_path: Path
) -> None:
    before = task.evaluate()
    train(task, SHORT, tmp_path)
    assert task.evaluate() < before - 0.2
    again = APP.again(load_progress(tmp_path / "best", "image"))
    load_weights(tmp_path / "best", again.model)
    assert APP.sample(again) == APP.sample(task)


def test_the_mask_is_obeyed_and_a_wrong_one_is_found(task: image.ImageTask) -> None:
    image.audited(task).assert_ok()
    cheat = image.Trained(mw.everything())
    cheat.mask = mw.causal()
    assert not image.audited(cheat).ok


def test_pixel_by_pixel_is_what_one_pass_says(task: image.ImageTask) -> None:
    images = image.drawn(task.model, [3, 8], Sampling(temperature=0))
    ids = image.sequences(images.reshape(2, 64), np.array([3, 8]))
    with torch.no_grad():
        logits = task.model(ids[:, :-1])[..., : image.SHADES]
    chosen = logits.gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(chosen, logits.amax(-1), atol=1e-4, rtol=0)


def test_another_mask_takes_the_place_of_its_own() -> None:
    assert APP.task(Wishes(mask="window(back=7)")).mask == mw.window(back=7)


def test_the_report_tells_figures_and_ends_with_the_audit(
    task: image.ImageTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "OF_EACH", 2)
    losses, shares, audit = APP.report(task)
    assert f"{image.counted_loss(task.digits):.3f}" in losses
    assert "of 20 drawn digits" in shares
    assert audit.startswith("GPT respects")


def test_the_judge_knows_real_digits(
    task: image.ImageTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = task.digits
    pick = [np.flatnonzero(digits.held_out_digits == d)[: image.OF_EACH] for d in range(10)]
    real = digits.held_out[np.concatenate(pick)].reshape(-1, 8, 8)
    monkeypatch.setattr(image, "drawn", lambda *_: real)
    held_out, drawn = image.recognised(task)
    assert held_out > 0.97
    assert drawn > 0.97


def test_counting_is_better_than_guessing() -> None:
    assert 0.5 < image.counted_loss(image.load_digits()) < np.log(image.SHADES) - 0.5


def test_use_shows_a_digit_and_writes_a_sheet(task: image.ImageTask, tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    *rows, told = APP.use(task, Prompt(text="31 4", count=2, seed=5, output=path))
    assert [len(row) for row in rows] == [16] * 8
    assert told == str(path)
    first = path.read_bytes()
    assert first.startswith(PNG)
    list(APP.use(task, Prompt(text="31 4", count=2, seed=5, output=path)))
    assert path.read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]


def test_the_sheet_has_a_row_for_each_digit() -> None:
    from matplotlib.image import imread

    images = np.zeros((2, 3, 8, 8), np.int64)
    images[1, 2] = 16
    found = imread(io.BytesIO(image.sheet(images, scale=1)))[..., 0]
    assert found.shape == (2 * 9 - 1, 3 * 9 - 1)
    assert (found[:8, :8] == 1).all()
    assert (found[9:, 18:] == 0).all()


def test_a_sheet_that_cannot_be_written_is_told(task: image.ImageTask, tmp_path: Path) -> None:
    prompt = Prompt(text="1", count=1, output=tmp_path / "none" / "sheet.png")
    with pytest.raises(mw.ArgumentError, match="can't be written"):
        list(APP.use(task, prompt))


@pytest.mark.parametrize("text", ["3a", "٣", "-1"])
def test_what_is_no_digit_is_refused(text: str) -> None:
    with pytest.raises(mw.ArgumentError, match="no digit"):
        image.read_digits(text)


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_count_that_makes_no_sheet_is_refused(task: image.ImageTask, count: int) -> None:
    with pytest.raises(mw.ArgumentError, match="do not fit"):
        next(APP.use(task, Prompt(text="1", count=count)))


def test_dots_show_dark_pixels() -> None:
    picture = np.zeros((8, 8), np.int64)
    picture[0, 0] = picture[7, 7] = 16
    assert image.dotted(picture) == ["⠁⠀⠀⠀", "⠀⠀⠀⢀"]


@pytest.mark.parametrize(
    "wishes", [Wishes(version="spiral"), Wishes(text=Path("a.txt")), Wishes(data="mnist")], ids=repr
)
def test_a_wish_it_does_not_know_is_refused(wishes: Wishes) -> None:
    with pytest.raises(mw.ArgumentError, match=r"Give one of raster, local|Leave --text"):
        APP.task(wishes)
