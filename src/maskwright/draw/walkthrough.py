"""The calculation of attention, shown: X → Q, K, V → scores → scaled → masked → softmax → output.

For a few tokens and one head, in float64, with every number on the way. What each step is called
and says is in `words`; the numbers are made here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.ascii import title_of
from maskwright.core.atoms import everything
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import parse_int
from maskwright.draw.numbers import matrix_grid
from maskwright.draw.scene import Scene, legend_of
from maskwright.draw.words import SAYS, TITLES
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray

    Array = npt.NDArray[np.float64]

MOST_TOKENS = 64  # more than anyone reads
LARGEST_WIDTH = 1024
ALIKE = 1e-12


@dataclass(frozen=True, eq=False)
class Step:
    """One step: its numbers, with names for rows and columns, and what it does in words.

    `axes` are the letters of the shape, T for tokens, C for the width of a token, hs for that of a
    head. `hidden` is True where a mask hides the number.
    """

    name: str
    formula: str
    axes: tuple[str, str]
    values: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    hidden: BoolArray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are."""
        rows, columns = self.values.shape
        return rows, columns

    @property
    def title(self) -> Mapping[str, str]:
        """What the step is called, in English ("en") and Chinese ("zh")."""
        return TITLES[self.name]

    @property
    def says(self) -> Mapping[str, str]:
        """What the step does, in English ("en") and Chinese ("zh")."""
        return SAYS[self.name]

    def scene(self, digits: int = 2) -> Scene:
        """The step as a picture."""
        grid = matrix_grid(
            self.values,
            hidden=self.hidden,
            rows=self.rows,
            columns=self.columns,
            names=("query", "key") if self.axes == ("T", "T") else ("token", "column"),
            digits=digits,
        )
        shape = f"({', '.join(self.axes)}) = ({self.shape[0]}, {self.shape[1]})"
        note = f"{self.formula}  {shape}"
        title = self.title["en"]
        return Scene(title, (grid,), note, (), f"{title}: {note}. {self.says['en']}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data; what is not finite is a text."""
        return {
            "name": self.name,
            "formula": self.formula,
            "title": dict(self.title),
            "says": dict(self.says),
            "shape": list(self.shape),
            "axes": list(self.axes),
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
            "values": [[plain(x) for x in row] for row in self.values.tolist()],
            "hidden": None if self.hidden is None else self.hidden.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Walkthrough:
    """All steps of one calculation. Print it to read it.

    >>> import maskwright as mw
    >>> walk = mw.walkthrough(["a", "b", "c"], mw.causal(), seed=1)
    >>> [step.name for step in walk.steps]
    ['x', 'q', 'k', 'v', 'scores', 'scaled', 'masked', 'weights', 'output']
    >>> walk["weights"].values[0].tolist()
    [1.0, 0.0, 0.0]
    >>> walk.as_dict()["mask"], len(walk.scene().grids)
    ('causal()', 9)
    """

    tokens: tuple[str, ...]
    mask: BoundMask
    steps: tuple[Step, ...]

    def __getitem__(self, name: str) -> Step:
        for step in self.steps:
            if step.name == name:
                return step
        known = ", ".join(step.name for step in self.steps)
        raise KeyError(f"There is no step {name}. Give one of {known}.")

    def scene(self, digits: int = 2) -> Scene:
        """All steps in one picture."""
        scenes = [step.scene(digits) for step in self.steps]
        grids = tuple(
            replace(grid, title=f"{scene.title}: {step.formula}")
            for step, scene in zip(self.steps, scenes, strict=True)
            for grid in scene.grids
        )
        title = f"Attention under {title_of(self.mask)}"
        words = " ".join(scene.description for scene in scenes)
        return Scene(title, grids, " ".join(self.tokens), legend_of(grids), words)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON takes it."""
        return {
            "tokens": list(self.tokens),
            "mask": repr(self.mask.mask),
            "steps": [step.as_dict() for step in self.steps],
        }

    def __str__(self) -> str:
        from maskwright.draw.terminal import render

        parts = []
        for step in self.steps:
            parts += [render(step.scene(), colour=False), step.says["en"], ""]
        return "\n".join(parts).rstrip()


class Row(NamedTuple):
    """One row of step-by-step generation: what it gives alone, and as a row of the one pass."""

    position: int
    token: str
    weights: Array  # over all tokens of the one pass
    output: Array  # of the one pass
    alone: Array  # from this token and those before it only
    equal: bool


class Scaled(NamedTuple):
    """What scaling does at one head size: the spread of the scores, and how sharp softmax is.

    Sharpness is the largest weight of a row, in the mean: 1 is all on one key.
    """

    head_size: int
    variance: float
    scaled_variance: float
    sharpness: float
    scaled_sharpness: float


def walkthrough(
    tokens: Sequence[str] | str,
    mask: Mask | BoundMask | None = None,
    *,
    x: Any = None,
    wq: Any = None,
    wk: Any = None,
    wv: Any = None,
    scores: Any = None,
    width: int = 3,
    head_size: int = 2,
    seed: int = 0,
    scaled: bool = True,
    fill: float = -math.inf,
    rows_too: bool = False,
    batch: int = 0,
    head: int = 0,
) -> Walkthrough:
    """Every step of attention over a few tokens, with its numbers.

    What is not given is drawn by the seed: `x` (tokens, width), and `wq`, `wk`, `wv` (width,
    head_size). With `scores` (tokens, tokens) it begins there, and ends with the weights. Hidden
    scores become `fill`; `rows_too` also hides the row of every token that no query sees.

    >>> import maskwright as mw
    >>> scores = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    >>> walk = mw.walkthrough("I like it", mw.causal(), scores=scores)
    >>> walk["weights"].values.round(4).tolist()
    [[1.0, 0.0, 0.0], [0.4256, 0.5744, 0.0], [0.2186, 0.4864, 0.295]]
    """
    names = _read_tokens(tokens)
    if isinstance(fill, bool) or not isinstance(fill, (int, float)):
        raise ArgumentError(
            f"walkthrough: fill is of type {type(fill).__name__}. Give a number, such as -1e9."
        )
    if len(names) > MOST_TOKENS:
        raise ArgumentError(
            f"walkthrough: there are {len(names)} tokens, more than {MOST_TOKENS}. Give fewer."
        )
    bound = _bind(mask, len(names))
    seen = _plane(bound, batch, head)
    if rows_too:
        seen = seen & seen.any(0, keepdims=True).T
    steps: list[Step] = []
    if scores is None:
        inputs = _inputs(len(names), x, wq, wk, wv, width, head_size, seed)
        steps += _projected(names, inputs)
        q, k, _ = (step.values for step in steps[1:])
        steps.append(Step("scores", "Q Kᵀ", ("T", "T"), q @ k.T, names, names))
        if scaled:
            factor = math.sqrt(max(q.shape[1], 1))
            divided = steps[-1].values / factor
            formula = f"Q Kᵀ / √{q.shape[1]}"
            steps.append(Step("scaled", formula, ("T", "T"), divided, names, names))
    else:
        given = _array(scores, "scores", (len(names), len(names)))
        steps.append(Step("scores", "Q Kᵀ", ("T", "T"), given, names, names))
    masked = np.where(seen, steps[-1].values, fill)
    formula = f"hidden → {_fill_text(fill)}"
    steps.append(Step("masked", formula, ("T", "T"), masked, names, names, ~seen))
    weights, _ = masked_softmax(masked)
    steps.append(Step("weights", "softmax, row by row", ("T", "T"), weights, names, names, ~seen))
    if scores is None:
        values = next(step.values for step in steps if step.name == "v")
        steps.append(Step("output", "weights · V", ("T", "hs"), weights @ values, names))
    return Walkthrough(names, bound, tuple(steps))


def weights_scene(walks: Mapping[str, Walkthrough], digits: int = 2) -> Scene:
    """The weights of some calculations side by side, each under its name.

    >>> import maskwright as mw
    >>> from maskwright.draw.walkthrough import weights_scene
    >>> masks = {"no mask": None, "look-ahead mask": mw.causal()}
    >>> scene = weights_scene({name: mw.walkthrough("a b", mask) for name, mask in masks.items()})
    >>> [grid.title for grid in scene.grids]
    ['no mask', 'look-ahead mask']
    """
    grids = tuple(
        matrix_grid(
            (step := walk["weights"]).values,
            title=name,
            hidden=step.hidden,
            rows=step.rows,
            columns=step.columns,
            digits=digits,
        )
        for name, walk in walks.items()
    )
    title = "weights under " + ", ".join(walks)
    note = "the same scores, softmax row by row"
    return Scene(title, grids, note, legend_of(grids), f"{title}: {note}.")


def generation(
    tokens: Sequence[str] | str, mask: Mask | BoundMask | None = None, **given: Any
) -> tuple[Row, ...]:
    """Row after row, as a model generates: from the tokens so far, and as rows of one pass.

    Under a mask that shows no row a later token both are equal, which is why one pass can train
    what is later generated step by step. `given` is as in `walkthrough`.

    >>> import maskwright as mw
    >>> from maskwright.draw.walkthrough import generation
    >>> [row.equal for row in generation("how are you", mw.causal())]
    [True, True, True]
    >>> [row.equal for row in generation("how are you", mw.everything())]
    [False, False, True]
    """
    whole = walkthrough(tokens, mask, **given)
    if "output" not in {step.name for step in whole.steps}:
        raise ArgumentError("generation: scores alone have no values. Give x, or nothing.")
    scaled = {name: value for name, value in given.items() if name in ("scaled", "fill")}
    q, k, v = (whole[name].values for name in ("q", "k", "v"))
    seen = ~_hidden(whole)
    rows = []
    for at, token in enumerate(whole.tokens):
        score = q[at] @ k[: at + 1].T
        if scaled.get("scaled", True):
            score = score / math.sqrt(max(q.shape[1], 1))
        hidden = np.where(seen[at, : at + 1], score, scaled.get("fill", -math.inf))
        alone = masked_softmax(hidden)[0] @ v[: at + 1]
        output = whole["output"].values[at]
        same = bool(np.abs(alone - output).max(initial=0.0) <= ALIKE)
        rows.append(Row(at, token, whole["weights"].values[at], output, alone, same))
    return tuple(rows)


def scaling(
    sizes: Sequence[int] = (1, 4, 16, 64, 256), *, keys: int = 16, rows: int = 512, seed: int = 0
) -> tuple[Scaled, ...]:
    """How scores spread with the head size, and softmax sharpens, without and with scaling.

    >>> from maskwright.draw.walkthrough import scaling
    >>> small, large = scaling([4, 256])
    >>> large.variance > 30 * small.variance
    True
    >>> abs(large.scaled_variance - small.scaled_variance) < 0.2
    True
    """
    found = []
    for size in sizes:
        size = parse_int(size, "scaling: a head size", minimum=1)
        if size > LARGEST_WIDTH:
            raise ArgumentError(
                f"scaling: the head size {size} is more than {LARGEST_WIDTH}. Give a smaller one."
            )
        drawn = np.random.default_rng([seed, size])
        q, k = drawn.standard_normal((rows, size)), drawn.standard_normal((rows, keys, size))
        scores = np.einsum("rd,rkd->rk", q, k)
        divided = scores / math.sqrt(size)
        sharp, soft = (float(masked_softmax(s)[0].max(1).mean()) for s in (scores, divided))
        found.append(Scaled(size, float(scores.var()), float(divided.var()), sharp, soft))
    return tuple(found)


def plain(number: float) -> float | str:
    """A number as JSON takes it."""
    if math.isnan(number):
        return "nan"
    return number if math.isfinite(number) else "inf" if number > 0 else "-inf"


def _read_tokens(tokens: Any) -> tuple[str, ...]:
    if isinstance(tokens, str):
        return tuple(tokens.split())
    try:
        return tuple(str(token) for token in tokens)
    except TypeError:
        raise ArgumentError(
            f"walkthrough: tokens is of type {type(tokens).__name__}. Give a text, or a list of them."
        ) from None


class _Inputs(NamedTuple):
    x: Array
    wq: Array
    wk: Array
    wv: Array


def _inputs(
    count: int, x: Any, wq: Any, wk: Any, wv: Any, width: int, head_size: int, seed: int
) -> _Inputs:
    """Those given, and for the rest numbers of one digit after the point, drawn by the seed."""
    wide = parse_int(width, "walkthrough: width", minimum=1)
    deep = parse_int(head_size, "walkthrough: head_size", minimum=1)
    if max(wide, deep) > LARGEST_WIDTH:
        raise ArgumentError(
            f"walkthrough: width {wide} or head_size {deep} is more than {LARGEST_WIDTH}. "
            "Give smaller ones."
        )
    drawn = np.random.default_rng(parse_int(seed, "walkthrough: seed", minimum=0))
    made = [drawn.standard_normal((count, wide)).round(1)]
    made += [drawn.standard_normal((wide, deep)).round(1) for _ in range(3)]
    if x is not None:
        x = _array(x, "x", (count, None))
        wide = x.shape[1]
    if wq is not None:
        deep = _array(wq, "wq", (wide, None)).shape[1]
    shapes = ((count, wide), (wide, deep), (wide, deep), (wide, None))
    found = []
    for name, given, own, shape in zip(_Inputs._fields, (x, wq, wk, wv), made, shapes, strict=True):
        array = own if given is None else _array(given, name, shape)
        found.append(_array(array, name, shape))
    return _Inputs(*found)


def _projected(names: tuple[str, ...], given: _Inputs) -> list[Step]:
    steps = [Step("x", "X", ("T", "C"), given.x, names)]
    for name, weight in (("q", given.wq), ("k", given.wk), ("v", given.wv)):
        formula = f"X W{name.upper()}"
        steps.append(Step(name, formula, ("T", "hs"), given.x @ weight, names))
    return steps


def _array(given: Any, name: str, shape: tuple[int | None, int | None]) -> Array:
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"walkthrough: {name} is no table of numbers. Give lists of rows."
        ) from None
    fits = array.ndim == 2 and all(
        want in (None, size) for want, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        raise FrameError(
            f"walkthrough: {name} has shape {array.shape} but {wanted} is needed. Give it so."
        )
    return array


def _bind(mask: Mask | BoundMask | None, count: int) -> BoundMask:
    if isinstance(mask, BoundMask):
        if mask.shape[2:] != (count, count):
            raise FrameError(
                f"walkthrough: the mask is for {mask.shape[2]} queries and {mask.shape[3]} keys, and "
                f"there are {count} tokens. Bind it to as many."
            )
        return mask
    if mask is not None and not isinstance(mask, Mask):
        raise ArgumentError(
            f"walkthrough: the mask is of type {type(mask).__name__}. Give a mask, or None for all."
        )
    return (everything() if mask is None else mask).on(count)


def _plane(bound: BoundMask, batch: int, head: int) -> BoolArray:
    seen: BoolArray = bound.coverage(batch=batch, head=head) > 0
    return seen


def _hidden(walk: Walkthrough) -> BoolArray:
    hidden = walk["masked"].hidden
    assert hidden is not None
    return hidden


def _fill_text(fill: float) -> str:
    return "−∞" if fill == -math.inf else f"{fill:g}".replace("e-0", "e-").replace("e+0", "e")
