"""Handwritten digits, drawn pixel by pixel: a token names the digit, and 64 pixels follow it.

The images are the 1,797 of scikit-learn, 8 × 8 in 17 shades. The version "raster" draws each pixel
from all that is drawn already, "local" only from what is near it on the sheet, and the digit's name.
"""

from __future__ import annotations

import functools
import io
import operator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from maskwright._atomic_write import write_atomic
from maskwright._optional_deps import require
from maskwright.apps.app import version_of
from maskwright.apps.training import Course, seeded
from maskwright.auditing.run import audit
from maskwright.core.atoms import causal, keys, queries, window
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.sampling import Sampling, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from maskwright.apps.app import Prompt, Wishes
    from maskwright.apps.checkpoints import Progress
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

SIDE = 8
PIXELS = SIDE * SIDE
SHADES, DIGITS = 17, 10  # ids: the shades first, then a name for each digit
RADIUS = 2  # of what "local" sees
HELD_OUT = 360
BATCH = 32
SIZE = GPTConfig(SHADES + DIGITS, context=PIXELS, width=96, heads=4, layers=4, dropout=0.1)
OF_EACH = 20  # digits drawn for the report
MOST = 1000  # digits on one sheet
INKS = " ░▒▓█"
PROBES = ("leak", "reach", "gradient")
VERSIONS = ("raster", "local")


def neighbourhood(radius: int) -> Mask:
    """What draws a pixel sees the drawn ones within `radius` lines and columns, and the digit's name.

    Position 0 holds the name and draws the first pixel; position t holds pixel t - 1 and draws pixel
    t. `image(8, 8, radius)` would count every token as a pixel, and wants all of them at once. This
    says the same of the pixels by their columns and how far back they are, and fits every frame, so
    that a cache may grow under it.

    >>> from maskwright.apps.image import neighbourhood
    >>> neighbourhood(1).on(64).spans.row(18)  # pixel 18 sees 9 to 11, and 17
    [(0, 1), (10, 13), (18, 19)]
    """
    if not 0 < 2 * radius < SIDE:
        raise ArgumentError(
            f"neighbourhood: radius={radius} does not fit. Give 1 to {SIDE // 2 - 1}."
        )
    columns = []
    for column in range(SIDE):
        first, last = max(column - radius, 0), min(column + radius, SIDE - 1)
        near = [p + 1 for p in range(PIXELS) if first <= p % SIDE <= last]
        columns.append(queries(range(column, PIXELS, SIDE)) & keys(near))
    drawn = window(back=(SIDE + 1) * radius - 1)  # with the columns, exactly `radius` lines up
    return keys([0]) | window(back=0) | drawn & functools.reduce(operator.or_, columns)


@dataclass(frozen=True, eq=False)
class Digits:
    """Images as rows of 64 shades, and what they show; a part of them was held out."""

    training: npt.NDArray[np.int64]
    training_digits: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]
    held_out_digits: npt.NDArray[np.int64]


class ImageTask:
    """Real digits, cut in two, and a model that is to name each next shade."""

    name = "image"

    def __init__(self, wishes: Wishes, version: str, digits: Digits) -> None:
        self.wishes, self.version, self.digits = wishes, version, digits
        self.mask = wishes.mask_or(neighbourhood(RADIUS) if version == "local" else causal())
        self.training = sequences(digits.training, digits.training_digits)
        self.held_out = sequences(digits.held_out, digits.held_out_digits)
        torch.manual_seed(wishes.seed)
        self.model = GPT(SIZE, self.mask)
        self.size = wishes.batch or BATCH

    def config(self) -> dict[str, Any]:
        """The make of the model."""
        return {
            "version": self.version,
            "mask": repr(self.mask),
            "batch": self.size,
            "seed": self.wishes.seed,
            "model": asdict(self.model.config),
        }

    def batch(self, step: int, part: int) -> torch.Tensor:
        """Some images with their names."""
        generator = seeded(self.wishes.seed, step, part)
        chosen = torch.randint(len(self.training), (self.size,), generator=generator)
        return self.training[chosen]

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """How surprised the model is by the next pixel, in nats."""
        ids = batch.to(self.device)
        logits = self.model(ids[:, :-1])[..., :SHADES]
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def tokens(self, batch: torch.Tensor) -> int:
        """Pixels of a batch."""
        return int(batch[:, 1:].numel())

    def evaluate(self) -> float:
        """The loss on the images that were held out."""
        with torch.no_grad():
            return float(self.loss(self.held_out))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.words.weight.device


class Trained:
    """A model that was trained, without its data."""

    def __init__(self, mask: Mask) -> None:
        self.mask, self.model = mask, GPT(SIZE, mask)


class Image:
    """Draws the digits asked for."""

    name = "image"
    summary = "handwritten digits, drawn pixel by pixel"
    versions = VERSIONS

    def course(self, wishes: Wishes) -> Course:
        """Some minutes on two cores."""
        return Course(steps=800, rate=3e-3, warmup=100, evaluate_every=100, seed=wishes.seed)

    def task(self, wishes: Wishes) -> ImageTask:
        """The digits of scikit-learn."""
        version = version_of(self.name, self.versions, wishes.version)
        if wishes.text is not None or wishes.pairs is not None or wishes.data is not None:
            raise ArgumentError(
                "image knows its own digits only. Leave --text, --pairs, --data out."
            )
        return ImageTask(wishes, version, load_digits())

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint."""
        return Trained(parse(progress.config["mask"]))

    def sample(self, task: ImageTask | Trained) -> str:
        """All ten digits in two lines of dots."""
        images = drawn(task.model, list(range(DIGITS)), Sampling(0.8, seed=0))
        return "\n".join(" ".join(row) for row in zip(*map(dotted, images), strict=True))

    def report(self, task: ImageTask) -> Iterator[str]:
        """Its loss beside that of counting, how many digits are recognised, and the audit."""
        yield (
            f"held-out loss {task.evaluate():.3f} nats a pixel; counting the shades of each pixel by "
            f"itself, for every digit: {counted_loss(task.digits):.3f}"
        )
        real, share = recognised(task)
        yield (
            f"{share:.0%} of {DIGITS * OF_EACH} drawn digits are recognised as the one asked for, by an "
            f"SVM that recognises {real:.1%} of the real ones held out"
        )
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: ImageTask, honest: ImageTask) -> tuple[str, float]:
        """The share of its digits that are recognised."""
        del honest
        return "drawn digits that are recognised as the one asked for", recognised(task)[1]

    def use(self, task: ImageTask | Trained, prompt: Prompt) -> Iterator[str]:
        """The first digit, line by line as it is drawn; then the file with all of them."""
        wished = read_digits(prompt.text)
        each = 10 if prompt.count is None else prompt.count
        if not 1 <= each * len(wished) <= MOST:
            raise ArgumentError(
                f"{len(wished)} digits of {each} each do not fit. Give 1 to {MOST} in all."
            )
        temperature = 0.8 if prompt.temperature is None else prompt.temperature
        how = Sampling(temperature, prompt.top_k, prompt.top_p, prompt.seed)
        images = np.zeros((0, 0, SIDE), np.int64)
        for images in growing(task.model, [d for d in wished for _ in range(each)], how):
            yield inked(images[0, -1])
        path = Path("digits.png") if prompt.output is None else prompt.output
        try:
            write_atomic(path, sheet(images.reshape(len(wished), each, SIDE, SIDE)))
        except OSError as error:
            raise ArgumentError(
                f"{path} can't be written: {error.strerror}. Name another file."
            ) from error
        yield str(path)


def load_digits() -> Digits:
    """The digits of scikit-learn; which are held out is always the same.

    >>> from maskwright.apps.image import load_digits
    >>> load_digits().training.shape, load_digits().held_out.shape
    ((1437, 64), (360, 64))
    """
    with require("image"):
        from sklearn import datasets  # type: ignore[import-untyped, unused-ignore]
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, digits = found.data[order].astype(np.int64), found.target[order].astype(np.int64)
    return Digits(images[HELD_OUT:], digits[HELD_OUT:], images[:HELD_OUT], digits[:HELD_OUT])


def sequences(images: npt.NDArray[np.int64], digits: npt.NDArray[np.int64]) -> torch.Tensor:
    """A name and 64 pixels each: (B, 65)."""
    return torch.from_numpy(np.concatenate([SHADES + digits[:, None], images], axis=1))


@torch.no_grad()
def growing(model: GPT, digits: list[int], how: Sampling) -> Iterator[npt.NDArray[np.int64]]:
    """Images of these digits, line by line: (B, 1, 8), then (B, 2, 8), up to (B, 8, 8)."""
    device = model.words.weight.device
    generator, caches = how.generator(device), model.new_caches()
    model.eval()
    fresh = SHADES + torch.tensor(digits, device=device)[:, None]
    pixels: list[torch.Tensor] = []
    for _ in range(PIXELS):
        fresh = sample(model(fresh, caches=caches)[:, -1, :SHADES], how, generator)[:, None]
        pixels.append(fresh)
        if len(pixels) % SIDE == 0:
            yield torch.cat(pixels, dim=1).cpu().numpy().reshape(len(digits), -1, SIDE)


def drawn(model: GPT, digits: list[int], how: Sampling) -> npt.NDArray[np.int64]:
    """Images of these digits, whole: (B, 8, 8)."""
    *_, images = growing(model, digits, how)
    return np.asarray(images)


def inked(row: npt.NDArray[np.int64]) -> str:
    """A line of pixels as text, each two letters wide, so that it is about square.

    >>> import numpy as np
    >>> from maskwright.apps.image import inked
    >>> inked(np.array([16, 8, 3, 0, 16]))
    '██▒▒░░  ██'
    """
    return "".join(2 * INKS[round(int(shade) * (len(INKS) - 1) / (SHADES - 1))] for shade in row)


def dotted(image: npt.NDArray[np.int64]) -> list[str]:
    """An image as two lines of four letters, each of 2 × 4 dots; dark pixels are dots."""
    bits = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    dark = (image >= SHADES // 2).reshape(2, 4, 4, 2).transpose(0, 2, 1, 3)  # (line, letter, 4, 2)
    return ["".join(chr(0x2800 + int((letter * bits).sum())) for letter in line) for line in dark]


def sheet(images: npt.NDArray[np.int64], scale: int = 6) -> bytes:
    """A PNG of images (rows, columns, 8, 8), dark on white, with lines of grey between them."""
    with require("image"):
        from matplotlib.image import imsave
    large = images.repeat(scale, axis=2).repeat(scale, axis=3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, scale), (0, scale)), constant_values=3)
    whole = framed.transpose(0, 2, 1, 3).reshape(framed.shape[0] * framed.shape[2], -1)
    file = io.BytesIO()
    imsave(file, whole[:-scale, :-scale], cmap="gray_r", vmin=0, vmax=SHADES - 1, format="png")
    return file.getvalue()


def read_digits(text: str | None) -> list[int]:
    """The digits that a prompt asks for; all of them where it says nothing.

    >>> from maskwright.apps.image import read_digits
    >>> read_digits("3141"), read_digits(None)
    ([3, 1, 4, 1], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    wished = "".join((text or "").split()) or "0123456789"
    strange = sorted({letter for letter in wished if letter not in "0123456789"})
    if strange:
        raise ArgumentError(f"{' '.join(strange)[:40]!r} is no digit. Give digits, such as 3141.")
    return [int(letter) for letter in wished]


def counted_loss(digits: Digits) -> float:
    """The held-out loss of counting how often a pixel has a shade, for every digit and pixel."""
    counts = np.full((DIGITS, PIXELS, SHADES), 0.1)
    place = np.arange(PIXELS)
    np.add.at(counts, (digits.training_digits[:, None], place, digits.training), 1.0)
    chances = counts / counts.sum(-1, keepdims=True)
    return float(-np.log(chances[digits.held_out_digits[:, None], place, digits.held_out]).mean())


def recognised(task: ImageTask) -> tuple[float, float]:
    """What an SVM recognises of the real digits held out, and of drawn ones."""
    with require("image"):
        from sklearn.svm import SVC  # type: ignore[import-untyped, unused-ignore]
    digits = task.digits
    judge = SVC(gamma=0.001).fit(digits.training, digits.training_digits)
    asked = np.repeat(np.arange(DIGITS), OF_EACH)
    images = drawn(task.model, asked.tolist(), Sampling(0.8, seed=0))
    real = (judge.predict(digits.held_out) == digits.held_out_digits).mean()
    return float(real), float((judge.predict(images.reshape(len(asked), -1)) == asked).mean())


def audited(task: ImageTask | Trained) -> AuditReport:
    """Does the model obey its mask?"""
    ids = torch.randint(SHADES, (2, PIXELS), generator=torch.Generator().manual_seed(0))
    ids[:, 0] = SHADES + ids[:, 0] % DIGITS
    device = task.model.words.weight.device
    return audit(task.model, ids.to(device), expects=task.mask, probes=PROBES)
