"""Attention step by step: X → Q, K, V → scores → scaled → masked → softmax → output.

For a few tokens and one head, in float64, with all numbers. A soft cap, a bias and a sink are steps
of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.bias.expr import Bias, brief
from maskwright.bias.scores import read_softcap
from maskwright.core.ascii import title_of
from maskwright.core.atoms import everything
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import parse_int
from maskwright.draw.matrices import format_number, matrix_grid
from maskwright.draw.scene import Kind, Scene, legend_of
from maskwright.draw.text import split_tokens
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError, FrameError
from maskwright.messages import LANGUAGES, Reason, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray
    from maskwright.draw.scene import Grid, LegendEntry

    Array = npt.NDArray[np.float64]

MAX_TOKENS: Final = 64
MAX_WIDTH: Final = 1024
TOLERANCE: Final = 1e-12  # of equal outputs
NUM_ROWS, NUM_KEYS = 512, 16  # random queries of `scaling`, and keys of each


@dataclass(frozen=True, eq=False)
class Step:
    """A step of attention: its numbers, with labels.

    Args:
        name: One of x, q, k, v, scores, scaled, capped, bias, biased, masked, weights, sink and
            output.
        formula: How it is computed.
        axes: The letters of its shape: T tokens, C embedding size, hs head size.
        values: The numbers.
        rows: Labels of the rows.
        columns: Labels of the columns.
        hidden: True where the number is masked.
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
        """Number of rows and columns."""
        rows, columns = self.values.shape
        return rows, columns

    @property
    def title(self) -> Mapping[str, str]:
        """The title in English ("en") and Chinese ("zh")."""
        return self._texts("title")

    @property
    def says(self) -> Mapping[str, str]:
        """What the step computes, in English ("en") and Chinese ("zh")."""
        return self._texts("text")

    def _texts(self, part: str) -> dict[str, str]:
        return {lang: render(Reason(f"walkthrough.{self.name}.{part}"), lang) for lang in LANGUAGES}

    def grid(self, digits: int = 2, title: str = "", lang: str = "en") -> Grid:
        """The step as a grid, with the names of its axes in English or Chinese."""
        axes = ("query", "key") if self.axes == ("T", "T") else ("token", "column")
        row, column = (render(Reason(f"walkthrough.axis.{name}"), lang) for name in axes)
        grid = matrix_grid(
            self.values,
            title=title,
            hidden=self.hidden,
            rows=self.rows,
            columns=self.columns,
            names=(row, column),
            digits=digits,
        )
        return replace(grid, names=_kind_names(lang))

    def scene(self, digits: int = 2, lang: str = "en") -> Scene:
        """The step as a scene, in English or Chinese."""
        shape = f"({', '.join(self.axes)}) = ({self.shape[0]}, {self.shape[1]})"
        note = f"{self.formula}  {shape}"
        title = self.title[lang]
        text = f"{title}: {note}. {self.says[lang]}"
        return Scene(title, (self.grid(digits, lang=lang),), note, (), text)

    def as_dict(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite are strings."""
        return {
            "name": self.name,
            "formula": self.formula,
            "title": dict(self.title),
            "says": dict(self.says),
            "shape": list(self.shape),
            "axes": list(self.axes),
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
            "values": [
                [x if math.isfinite(x) else str(x) for x in row] for row in self.values.tolist()
            ],
            "hidden": None if self.hidden is None else self.hidden.tolist(),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Walkthrough:
    """All steps of attention over a few tokens. Print it, or display it in a notebook.

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
        steps = {step.name: step for step in self.steps}
        if name not in steps:
            raise KeyError(f"expected a step of {', '.join(steps)}, got {name!r}")
        return steps[name]

    def scene(self, digits: int = 2, lang: str = "en") -> Scene:
        """All steps in one scene, with titles in English or Chinese."""
        grids = tuple(
            step.grid(digits, f"{step.title[lang]}: {step.formula}", lang) for step in self.steps
        )
        title = render(Reason("walkthrough.title", {"mask": title_of(self.mask)}), lang)
        text = " ".join(step.scene(digits, lang).description for step in self.steps)
        return Scene(title, grids, " ".join(self.tokens), _legend(grids, lang), text)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "tokens": list(self.tokens),
            "mask": repr(self.mask.mask),
            "steps": [step.as_dict() for step in self.steps],
        }

    def __repr__(self) -> str:
        steps = ", ".join(step.name for step in self.steps)
        return f"<Walkthrough of {len(self.tokens)} tokens under {title_of(self.mask)}: {steps}>"

    def _repr_html_(self) -> str:
        from maskwright.draw.html import fragment

        return fragment(self.scene())

    def text(self, lang: str = "en") -> str:
        """All steps as text, in English ("en") or Chinese ("zh"); formulas are in English.

        >>> import maskwright as mw
        >>> print(mw.walkthrough("a b", mw.causal(), scores=[[1, 2], [3, 4]]).text("zh")[:5])
        注意力分数
        """
        from maskwright.draw import terminal

        parts = []
        for step in self.steps:
            parts += [terminal.render(step.scene(lang=lang), colour=False), step.says[lang], ""]
        return "\n".join(parts).rstrip()

    def __str__(self) -> str:
        return self.text()


class Row(NamedTuple):
    """A row computed twice: in one forward pass over all tokens, and in a decode step."""

    position: int
    token: str
    weights: Array  # over all tokens, in the forward pass
    output: Array  # in the forward pass
    alone: Array  # output of the decode step: from this token and the tokens before it
    equal: bool


class Scaled(NamedTuple):
    """Variance of the scores and sharpness of the softmax at a head size, with and without scaling.

    Sharpness is the mean of the largest weight of each row: 1 is all weight on one key.
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
    softcap: float | None = None,
    bias: Any = None,
    sink: float | None = None,
    fill: float = -math.inf,
    rows_too: bool = False,
    batch: int = 0,
    head: int = 0,
) -> Walkthrough:
    """Computes attention over a few tokens step by step.

    Args:
        tokens: The tokens, or a sentence, which is split by `maskwright.draw.text.split_tokens`.
        mask: The mask. Default: none.
        x: Embeddings, (tokens, width). Inputs that are not given are random.
        wq: Query projection, (width, head_size).
        wk: Key projection, (width, head_size).
        wv: Value projection, (width, any).
        scores: Scores, (tokens, tokens). The walkthrough then begins here and ends at the weights.
        width: Embedding size of random inputs.
        head_size: Head size of random inputs.
        seed: Random seed.
        scaled: Whether scores are divided by √head_size.
        softcap: Bound of the scores: they become softcap · tanh(scores / softcap).
        bias: Added to the scores: a bias of `mw.bias`, or a matrix (tokens, tokens).
        sink: Logit of the attention sink, which takes part in the softmax of every row.
        fill: The value of masked scores.
        rows_too: Whether to mask also the rows of tokens that no query attends to.
        batch: The batch row of the mask and the bias.
        head: The head of the mask and the bias.

    Returns:
        All steps with their matrices.

    >>> import maskwright as mw
    >>> scores = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    >>> walk = mw.walkthrough("I like it", mw.causal(), scores=scores)
    >>> walk["weights"].values.round(4).tolist()
    [[1.0, 0.0, 0.0], [0.4256, 0.5744, 0.0], [0.2186, 0.4864, 0.295]]

    A sink takes a part of every row:

    >>> walk = mw.walkthrough("I like it", mw.causal(), scores=scores, sink=0.8)
    >>> walk["weights"].values.round(4).tolist()[0], walk["sink"].values.round(4).tolist()[0]
    ([0.5, 0.0, 0.0], [0.5])
    """
    names = _read_tokens(tokens)
    cap = read_softcap(softcap, "walkthrough: softcap")
    logit = None if sink is None else _finite(sink, "sink")
    if isinstance(fill, bool) or not isinstance(fill, (int, float)):
        raise ArgumentError(
            f"walkthrough: fill: expected a number such as -1e9, got {type(fill).__name__}."
        )
    if len(names) > MAX_TOKENS:
        raise ArgumentError(
            f"walkthrough: tokens: expected at most {MAX_TOKENS}, got {len(names)}."
        )
    bound = _bind(mask, len(names))
    # A mask that is the same for all heads applies to each head of the bias.
    planes = bias.planes if isinstance(bias, Bias) else (1, 1)
    at = [
        0 if size == 1 and 0 <= index < count else index
        for size, index, count in zip(bound.shape[:2], (batch, head), planes, strict=True)
    ]
    visible: BoolArray = bound.coverage(batch=at[0], head=at[1]) > 0
    if rows_too:
        visible = visible & visible.any(0, keepdims=True).T
    steps: list[Step] = []

    def add(name: str, formula: str, values: Array, hidden: BoolArray | None = None) -> None:
        steps.append(Step(name, formula, ("T", "T"), values, names, names, hidden))

    if scores is None:
        inputs = {"x": x, "wq": wq, "wk": wk, "wv": wv}
        steps += _projected(names, inputs, width, head_size, seed)
        q, k, v = (step.values for step in steps[1:])
        add("scores", "Q Kᵀ", q @ k.T)
        if scaled:
            factor = math.sqrt(max(q.shape[1], 1))
            add("scaled", f"Q Kᵀ / √{q.shape[1]}", steps[-1].values / factor)
    else:
        add("scores", "Q Kᵀ", _array(scores, "scores", (len(names), len(names))))
    if cap is not None:
        number = format_number(cap)
        formula = f"{number} · tanh(scores / {number})"
        add("capped", formula, soft_cap(steps[-1].values, cap))
    if bias is not None:
        before, (added, text) = steps[-1].values, _read_bias(bias, len(names), batch, head)
        add("bias", text, added)
        add("biased", "scores + bias", before + added)
    masked = np.where(visible, steps[-1].values, fill)
    add("masked", f"masked → {format_number(fill)}", masked, ~visible)
    weights, sink_weights = softmax_with_sink(masked, logit)
    note = "" if logit is None else f", with a sink of {format_number(logit)}"
    add("weights", f"softmax of each row{note}", weights, ~visible)
    if logit is not None:
        formula = "1 - sum of the weights"
        steps.append(Step("sink", formula, ("T", "1"), sink_weights[:, None], names, ("sink",)))
    if scores is None:
        steps.append(Step("output", "weights · V", ("T", "hs"), weights @ v, names))
    return Walkthrough(names, bound, tuple(steps))


def soft_cap(scores: Array, cap: float) -> Array:
    """The scores within ± cap.

    >>> import numpy as np
    >>> from maskwright.draw.walkthrough import soft_cap
    >>> soft_cap(np.array([0.0, 1.0, 100.0]), 2.0).round(3).tolist()
    [0.0, 0.924, 2.0]
    """
    capped: Array = cap * np.tanh(scores / cap)
    return capped


def softmax_with_sink(scores: Array, sink: float | None) -> tuple[Array, Array]:
    """Softmax weights along the last axis, and the weight of the sink in each row.

    >>> import numpy as np
    >>> from maskwright.draw.walkthrough import softmax_with_sink
    >>> softmax_with_sink(np.zeros((1, 3)), 0.0)
    (array([[0.25, 0.25, 0.25]]), array([0.25]))
    """
    if sink is None:
        return masked_softmax(scores)[0], np.zeros(scores.shape[:-1])
    logits = np.full((*scores.shape[:-1], 1), sink)
    weights = masked_softmax(np.concatenate([scores, logits], axis=-1))[0]
    return weights[..., :-1], weights[..., -1]


def weights_scene(walks: Mapping[str, Walkthrough], digits: int = 2, lang: str = "en") -> Scene:
    """The softmax weights of several walkthroughs side by side, each under its name.

    Titles, axes and the legend are in English ("en") or Chinese ("zh").

    >>> import maskwright as mw
    >>> from maskwright.draw.walkthrough import weights_scene
    >>> masks = {"no mask": None, "look-ahead mask": mw.causal()}
    >>> scene = weights_scene({name: mw.walkthrough("a b", mask) for name, mask in masks.items()})
    >>> [grid.title for grid in scene.grids]
    ['no mask', 'look-ahead mask']
    """
    grids = tuple(walk["weights"].grid(digits, name, lang) for name, walk in walks.items())
    masks = render(Reason("list.separator"), lang).join(walks)
    title = render(Reason("walkthrough.compare.title", {"masks": masks}), lang)
    note = render(Reason("walkthrough.compare.note"), lang)
    return Scene(title, grids, note, _legend(grids, lang), f"{title}: {note}.")


def generation(
    tokens: Sequence[str] | str, mask: Mask | BoundMask | None = None, **given: Any
) -> tuple[Row, ...]:
    """Compares decoding step by step with one forward pass over all tokens.

    If the mask lets no query attend to a later token, both are equal: one pass trains what is
    generated step by step. The arguments are those of `walkthrough`.

    >>> import maskwright as mw
    >>> from maskwright.draw.walkthrough import generation
    >>> [row.equal for row in generation("how are you", mw.causal())]
    [True, True, True]
    >>> [row.equal for row in generation("how are you", mw.everything())]
    [False, False, True]
    """
    whole = walkthrough(tokens, mask, **given)
    if "output" not in {step.name for step in whole.steps}:
        raise ArgumentError("generation: scores have no values. Pass x instead of scores.")
    scores, values, outputs = (whole[name].values for name in ("masked", "v", "output"))
    rows = []
    for at, token in enumerate(whole.tokens):
        # A score depends on one query and one key only, so a decode step has the same ones.
        weights, _ = softmax_with_sink(scores[at, : at + 1], given.get("sink"))
        alone, output = weights @ values[: at + 1], outputs[at]
        same = bool(np.abs(alone - output).max(initial=0.0) <= TOLERANCE)
        rows.append(Row(at, token, whole["weights"].values[at], output, alone, same))
    return tuple(rows)


def scaling(sizes: Sequence[int] = (1, 4, 16, 64, 256), *, seed: int = 0) -> tuple[Scaled, ...]:
    """Measures how the variance of scores and the sharpness of softmax grow with the head size.

    >>> from maskwright.draw.walkthrough import scaling
    >>> small, large = scaling([4, 256])
    >>> large.variance > 30 * small.variance
    True
    >>> abs(large.scaled_variance - small.scaled_variance) < 0.2
    True
    """
    results = []
    for size in sizes:
        size = parse_int(size, "scaling: a head size", minimum=1)
        if size > MAX_WIDTH:
            raise ArgumentError(f"scaling: expected head sizes up to {MAX_WIDTH}, got {size}.")
        random = np.random.default_rng([seed, size])
        q = random.standard_normal((NUM_ROWS, size))
        k = random.standard_normal((NUM_ROWS, NUM_KEYS, size))
        scores = np.einsum("rd,rkd->rk", q, k)
        divided = scores / math.sqrt(size)
        sharp, soft = (float(masked_softmax(s)[0].max(1).mean()) for s in (scores, divided))
        results.append(Scaled(size, float(scores.var()), float(divided.var()), sharp, soft))
    return tuple(results)


def _kind_names(lang: str) -> dict[Kind, str]:
    """The kinds of cells of a step."""
    names = {Kind.MASKED: "masked", Kind.VISIBLE: "visible"}
    return {kind: render(Reason(f"walkthrough.kind.{name}"), lang) for kind, name in names.items()}


def _legend(grids: Sequence[Grid], lang: str) -> tuple[LegendEntry, ...]:
    darker = render(Reason("walkthrough.legend.visible"), lang)
    return legend_of(grids, _kind_names(lang) | {Kind.VISIBLE: darker})


def _read_tokens(tokens: Any) -> tuple[str, ...]:
    if isinstance(tokens, str):
        return tuple(split_tokens(tokens))
    try:
        return tuple(str(token) for token in tokens)
    except TypeError:
        raise ArgumentError(
            "walkthrough: tokens: expected a sentence or a list of tokens, "
            f"got {type(tokens).__name__}."
        ) from None


def _projected(
    names: tuple[str, ...], inputs: dict[str, Any], width: int, head_size: int, seed: int
) -> list[Step]:
    """X, Q, K and V. Inputs that are not given are random, with one decimal place."""
    width = parse_int(width, "walkthrough: width", minimum=1)
    head_size = parse_int(head_size, "walkthrough: head_size", minimum=1)
    if max(width, head_size) > MAX_WIDTH:
        raise ArgumentError(
            f"walkthrough: expected width and head_size up to {MAX_WIDTH}, "
            f"got {width} and {head_size}."
        )
    random = np.random.default_rng(parse_int(seed, "walkthrough: seed", minimum=0))
    for name, value in inputs.items():
        size = (len(names) if name == "x" else width, width if name == "x" else head_size)
        drawn = random.standard_normal(size).round(1)  # also if not used: seeds stay the same
        inputs[name] = drawn if value is None else value
    x = _array(inputs["x"], "x", (len(names), None))
    wq = _array(inputs["wq"], "wq", (x.shape[1], None))
    wk = _array(inputs["wk"], "wk", (x.shape[1], wq.shape[1]))
    wv = _array(inputs["wv"], "wv", (x.shape[1], None))
    projections = (("q", wq), ("k", wk), ("v", wv))
    return [
        Step("x", "X", ("T", "C"), x, names),
        *(Step(n, f"X W{n.upper()}", ("T", "hs"), x @ w, names) for n, w in projections),
    ]


def _finite(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentError(f"walkthrough: {name}: expected a finite number, got {value!r}.")
    return float(value)


def _read_bias(bias: Any, count: int, batch: int, head: int) -> tuple[Array, str]:
    """The added scores (tokens, tokens) of one batch row and head, and how they are written."""
    if not isinstance(bias, Bias):
        return _array(bias, "bias", (count, count)), "bias"
    bound = bias.on(count)
    planes = []
    for axis, index in enumerate((batch, head)):
        size = bound.shape[axis]
        if size > 1 and index >= size:
            name = ("batch", "head")[axis]
            raise FrameError(
                f"walkthrough: {name}={index}, but the bias has {size} along this axis. "
                f"Pass {name}=0 to {size - 1}."
            )
        planes.append(index if size > 1 else 0)
    return np.asarray(bound, np.float64)[planes[0], planes[1]], brief(bias)


def _array(values: Any, name: str, shape: tuple[int | None, int | None]) -> Array:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"walkthrough: {name}: expected a matrix of numbers, got {type(values).__name__}."
        ) from None
    fits = array.ndim == 2 and all(
        want in (None, size) for want, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        raise FrameError(f"walkthrough: {name}: expected shape {wanted}, got {array.shape}.")
    return array


def _bind(mask: Mask | BoundMask | None, count: int) -> BoundMask:
    if isinstance(mask, BoundMask):
        if mask.shape[2:] != (count, count):
            raise FrameError(
                f"walkthrough: mask: expected one of {count} queries and keys, as there are tokens, "
                f"got {mask.shape[2]} × {mask.shape[3]}. Pass the mask without .on()."
            )
        return mask
    if mask is not None and not isinstance(mask, Mask):
        raise ArgumentError(
            f"walkthrough: mask: expected a mask or None, got {type(mask).__name__}."
        )
    return (everything() if mask is None else mask).on(count)
