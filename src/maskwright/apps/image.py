"""Handwritten digits, generated pixel by pixel: a token for the digit, then 64 pixels.

The images are the 1,797 of scikit-learn, 8 × 8 in 17 shades. In the version "raster" each pixel
attends to all pixels before it, in "local" to those near it, and to the digit.
"""

from __future__ import annotations

import functools
import io
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from maskwright._atomic_write import write_atomic
from maskwright._optional_deps import require
from maskwright.apps import Prompt, Task
from maskwright.apps.trainer import TrainingConfig, step_generator
from maskwright.core.atoms import causal, keys, queries, window
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.sampling import SamplingParams, sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from maskwright.core.expr import Mask

    Array = npt.NDArray[np.int64]

SIDE = 8
NUM_PIXELS = SIDE * SIDE
NUM_SHADES, NUM_DIGITS = 17, 10  # ids: the shades, then the digits
RADIUS = 2  # of "local"
HELD_OUT = 360
# One position for the digit and all pixels but the last
CONFIG = GPTConfig(NUM_SHADES + NUM_DIGITS, NUM_PIXELS, n_embd=96, n_head=4, n_layer=4, dropout=0.1)
NUM_SCORED = 20  # images per digit to be scored
MAX_IMAGES = 1000
TEMPERATURE = 0.8
SHADING = " ░▒▓█"


def neighbourhood(radius: int) -> Mask:
    """The digit and the earlier pixels within `radius` rows and columns.

    Position 0 holds the digit and predicts the first pixel; position t holds pixel t - 1 and
    predicts pixel t. `image(8, 8, radius)` would take every token for a pixel. This mask says the
    same by columns and distance, at every length, so it also works with a KV cache.

    >>> from maskwright.apps.image import neighbourhood
    >>> neighbourhood(1).on(64).spans.row(18)  # pixel 18 attends to 9 to 11, and 17
    [(0, 1), (10, 13), (18, 19)]
    """
    if not 0 < 2 * radius < SIDE:
        raise ArgumentError(f"neighbourhood: radius={radius}, expected 1 to {SIDE // 2 - 1}.")
    columns = []
    for column in range(SIDE):
        first, last = max(column - radius, 0), min(column + radius, SIDE - 1)
        near = [p + 1 for p in range(NUM_PIXELS) if first <= p % SIDE <= last]
        columns.append(queries(range(column, NUM_PIXELS, SIDE)) & keys(near))
    above = window(back=(SIDE + 1) * radius - 1)  # with the columns, exactly `radius` rows up
    return keys([0]) | window(back=0) | above & functools.reduce(operator.or_, columns)


class Image(Task):
    """Generates images of the given digits."""

    name = "image"
    summary = "handwritten digits, generated pixel by pixel"
    versions = ("raster", "local")
    default_training = TrainingConfig(800, learning_rate=3e-3, warmup_steps=100, eval_interval=100)
    default_batch_size = 32
    output_formats = (".png", ".txt", ".json")
    model_class, model_config = GPT, CONFIG

    model: GPT
    images: Array  # what `predict` generated last, (digits, samples, 8, 8)

    def load_data(self) -> None:
        """The digits of scikit-learn, the same ones always held out."""
        images, digits = load_digits()
        ids = torch.from_numpy(np.concatenate([NUM_SHADES + digits[:, None], images], axis=1))
        self.training, self.held_out = ids[HELD_OUT:], ids[:HELD_OUT]  # (N, 65)

    def default_mask(self) -> Mask:
        """Causal in raster order, or the neighbourhood."""
        return neighbourhood(RADIUS) if self.version == "local" else causal()

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        """Random images with their digits, (B, 65)."""
        generator = step_generator(self.options.seed, step, micro_step)
        rows = torch.randint(len(self.training), (self.batch_size,), generator=generator)
        return self.training[rows]

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next pixel."""
        ids = batch.to(self.device)
        logits = self.model(ids[:, :-1])[..., :NUM_SHADES]
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def num_tokens(self, batch: torch.Tensor) -> int:
        """Pixels of a batch."""
        return int(batch[:, 1:].numel())

    def held_out_batch(self) -> torch.Tensor:
        """The held-out images."""
        return self.held_out

    def sample(self) -> str:
        """All ten digits as two lines of Braille patterns."""
        images = self.generate(list(range(NUM_DIGITS)), SamplingParams(TEMPERATURE, seed=0))
        return "\n".join(" ".join(row) for row in zip(*map(braille, images), strict=True))

    def report(self) -> Iterator[str]:
        """Held-out loss compared with that of independent pixels, and how many digits are recognised."""
        yield (
            f"held-out loss {self.evaluate():.3f} nats/pixel; "
            f"pixels independent given the digit: {self.independent_loss():.3f}"
        )
        held_out, generated = self.recognised()
        yield (
            f"{generated:.0%} of {NUM_DIGITS * NUM_SCORED} generated digits are recognised by an SVM "
            f"that recognises {held_out:.1%} of the held-out ones"
        )

    def independent_loss(self) -> float:
        """The held-out loss of a model that counts the shades of each pixel of each digit."""
        training, held_out = self.training.numpy(), self.held_out.numpy()
        counts, pixel = np.full((NUM_DIGITS, NUM_PIXELS, NUM_SHADES), 0.1), np.arange(NUM_PIXELS)
        np.add.at(counts, (training[:, :1] - NUM_SHADES, pixel, training[:, 1:]), 1.0)
        probs = counts / counts.sum(-1, keepdims=True)
        return float(-np.log(probs[held_out[:, :1] - NUM_SHADES, pixel, held_out[:, 1:]]).mean())

    def recognised(self) -> tuple[float, float]:
        """The share of held-out digits and of generated digits that an SVM recognises."""
        with require("image"):
            from sklearn.svm import SVC
        training, held_out = self.training.numpy(), self.held_out.numpy()
        classifier = SVC(gamma=0.001).fit(training[:, 1:], training[:, 0] - NUM_SHADES)
        digits = np.repeat(np.arange(NUM_DIGITS), NUM_SCORED)
        images = self.generate(digits.tolist(), SamplingParams(TEMPERATURE, seed=0))
        held_out_correct = classifier.predict(held_out[:, 1:]) == held_out[:, 0] - NUM_SHADES
        generated_correct = classifier.predict(images.reshape(len(digits), -1)) == digits
        return float(held_out_correct.mean()), float(generated_correct.mean())

    def score_generation(self, reference: Any) -> tuple[str, float]:  # noqa: ARG002
        """The share of generated digits that are recognised."""
        return "share of generated digits that are recognised", self.recognised()[1]

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The first image, line by line; `save_prediction` writes all of them."""
        digits = parse_digits(prompt.text)
        count = 10 if prompt.num_samples is None else prompt.num_samples
        if not 1 <= count * len(digits) <= MAX_IMAGES:
            raise ArgumentError(
                f"{len(digits)} digits × {count} samples: expected 1 to {MAX_IMAGES} images."
            )
        temperature = TEMPERATURE if prompt.temperature is None else prompt.temperature
        params = SamplingParams(temperature, prompt.top_k, prompt.top_p, prompt.seed)
        for images in self.generate_rows([d for d in digits for _ in range(count)], params):
            yield shade(images[0, -1])
        self.images = images.reshape(len(digits), count, SIDE, SIDE)

    def save_prediction(self, path: Path, lines: Sequence[str]) -> None:
        """Writes all images as PNG, or the first one as text."""
        if path.suffix.lower() == ".png":
            write_atomic(path, png(self.images))
        else:
            super().save_prediction(path, lines)

    def generate(self, digits: list[int], params: SamplingParams) -> Array:
        """Images of the digits, (B, 8, 8)."""
        *_, images = self.generate_rows(digits, params)
        return np.asarray(images)

    @torch.no_grad()
    def generate_rows(self, digits: list[int], params: SamplingParams) -> Iterator[Array]:
        """Images of the digits, row by row: (B, 1, 8), then (B, 2, 8), up to (B, 8, 8)."""
        generator, kv_caches = params.generator(self.device), self.model.new_kv_caches()
        self.model.eval()
        new = NUM_SHADES + torch.tensor(digits, device=self.device)[:, None]
        pixels: list[torch.Tensor] = []
        for _ in range(NUM_PIXELS):
            logits = self.model(new, kv_caches=kv_caches)[:, -1, :NUM_SHADES]
            new = sample(logits, params, generator)[:, None]
            pixels.append(new)
            if len(pixels) % SIDE == 0:
                yield torch.cat(pixels, dim=1).cpu().numpy().reshape(len(digits), -1, SIDE)

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Random images."""
        assert self.mask is not None
        ids = self.random_ids(0, NUM_SHADES, (2, NUM_PIXELS))
        ids[:, 0] = NUM_SHADES + ids[:, 0] % NUM_DIGITS
        return self.model, ids, {None: self.mask}


def load_digits() -> tuple[Array, Array]:
    """The images of scikit-learn in a fixed order, (N, 64), and their digits, (N,).

    >>> from maskwright.apps.image import load_digits
    >>> load_digits()[0].shape
    (1797, 64)
    """
    with require("image"):
        from sklearn import datasets
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return digits.data[order].astype(np.int64), digits.target[order].astype(np.int64)


def shade(row: Array) -> str:
    """A row of pixels as text, two characters per pixel.

    >>> import numpy as np
    >>> from maskwright.apps.image import shade
    >>> shade(np.array([16, 8, 3, 0, 16]))
    '██▒▒░░  ██'
    """
    steps = len(SHADING) - 1
    return "".join(2 * SHADING[round(int(x) * steps / (NUM_SHADES - 1))] for x in row)


def braille(image: Array) -> list[str]:
    """An image as two lines of four Braille patterns, 2 × 4 pixels each.

    >>> import numpy as np
    >>> from maskwright.apps.image import braille
    >>> braille(16 * np.eye(8, dtype=int))
    ['⠑⢄⠀⠀', '⠀⠀⠑⢄']
    """
    bits = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    dark = (image >= NUM_SHADES // 2).reshape(2, 4, 4, 2).transpose(0, 2, 1, 3)
    return ["".join(chr(0x2800 + int((cell * bits).sum())) for cell in line) for line in dark]


def png(images: Array, scale: int = 6) -> bytes:
    """A PNG of images (rows, columns, 8, 8), dark on white, with grey lines between them."""
    with require("image"):
        from matplotlib.image import imsave
    large = images.repeat(scale, axis=2).repeat(scale, axis=3)
    framed = np.pad(large, ((0, 0), (0, 0), (0, scale), (0, scale)), constant_values=3)
    sheet = framed.transpose(0, 2, 1, 3).reshape(framed.shape[0] * framed.shape[2], -1)
    file = io.BytesIO()
    imsave(file, sheet[:-scale, :-scale], cmap="gray_r", vmin=0, vmax=NUM_SHADES - 1, format="png")
    return file.getvalue()


def parse_digits(text: str | None) -> list[int]:
    """The digits of a prompt; all ten if it is empty.

    >>> from maskwright.apps.image import parse_digits
    >>> parse_digits("3141"), parse_digits(None)
    ([3, 1, 4, 1], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    wanted = "".join((text or "").split()) or "0123456789"
    if not (wanted.isascii() and wanted.isdecimal()):
        raise ArgumentError(f"expected digits such as 3141, got {wanted[:40]!r}.")
    return [int(character) for character in wanted]
