"""The front door: find the target, bind the mask, and name the part that a refusal is about."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.errors import ArgumentError, FrameError, MissingError, SizeError, Unsupported
from maskwright.targets.culprit import culprit
from maskwright.targets.target import CannotSay, LeavesEmpty, Target

if TYPE_CHECKING:
    from collections.abc import Callable

# The files of this package, by the targets' names.
FILES: Final = {
    "numpy": "numpy",
    "additive": "additive",
    "torch.bool": "torch_bool",
    "torch.additive": "torch_additive",
    "torch.sdpa": "torch_sdpa",
    "torch.mha": "torch_mha",
    "torch.transformer": "torch_transformer",
    "torch.flex": "torch_flex",
    "hf": "hf",
    "flash.varlen": "flash_varlen",
    "xformers": "xformers",
    "jax": "jax",
    "jax.splash": "jax_splash",
    "keras": "keras",
    "tensorflow": "tensorflow",
    "flashmask": "flashmask",
    "intervals": "intervals",
    "slices": "slices",
}

Three = tuple[BoundMask, BoundMask, BoundMask]


class Form(Protocol):
    """What the file of a target holds."""

    TARGET: Target
    lower: Callable[..., Any]
    usage: Callable[..., list[str]]


def lower(
    mask: Mask | BoundMask | tuple[Any, ...],
    to: str,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_start: int | None = None,
    **options: Any,
) -> Any:
    """Exactly this mask in the form that a framework takes, or a refusal that names what it can't.

    `to` is one of `capabilities()`. The sizes are those of `Mask.on()`; they may be left out where
    the mask's data tells them, and must be where the mask is bound already. Options, where the
    target has them: `device`, `dtype`, `fill` (of additive forms: "-inf", "min" or a number), and
    `empty_rows`: "zero" gives zero for a row that sees nothing or refuses, "error" refuses any such
    row, "native" takes what the target does.

    >>> import maskwright as mw
    >>> mw.lower(mw.causal(), "numpy", q_len=2).astype(int).tolist()
    [[[[1, 0], [1, 1]]]]
    >>> mw.lower(mw.window(back=0), "additive", q_len=2).tolist()
    [[[[0.0, -inf], [-inf, 0.0]]]]
    >>> mw.lower(mw.causal() | mw.prefix([3]), "flash.varlen", q_len=8)
    Traceback (most recent call last):
    maskwright.errors.Unsupported: flash.varlen can say causal, window and documents, but not \
prefix(lengths=[3]) under |. Use torch.flex or torch.bool.
    """
    form = _form(to)
    bound = _bind(mask, form, q_len, kv_len, batch, heads, q_start)
    return _lower(form, bound, options)


def explain_lowering(
    mask: Mask | BoundMask | tuple[Any, ...],
    to: str,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_start: int | None = None,
    **options: Any,
) -> str:
    """The short code that a person would paste to use this mask there. Arguments as for `lower`.

    >>> import maskwright as mw
    >>> print(mw.explain_lowering(mw.causal() & mw.padding(lengths=[2, 3]), "numpy", q_len=3))
    import numpy as np
    <BLANKLINE>
    row = np.arange(0, 3)[:, None]  # queries' positions
    col = np.arange(3)[None, :]  # keys' positions
    mask = np.broadcast_to((col <= row) & (col < np.array([2, 3])[:, None, None, None]), \
(2, 1, 3, 3))  # True keeps
    """
    form = _form(to)
    bound = _bind(mask, form, q_len, kv_len, batch, heads, q_start)
    return "\n".join(form.usage(bound, _lower(form, bound, options)))


def capabilities() -> dict[str, Target]:
    """What every target can say and how it says it, by name.

    >>> import maskwright as mw
    >>> mw.capabilities()["torch.sdpa"].polarity, mw.capabilities()["torch.mha"].polarity
    ('True keeps', 'True drops')
    """
    return {name: _form(name).TARGET for name in FILES}


def _form(to: str) -> Form:
    if not isinstance(to, str) or to not in FILES:
        near = [name for name in FILES if name.split(".")[-1] == to]
        near = near or difflib.get_close_matches(str(to), FILES, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Give one of {', '.join(FILES)}."
        raise ArgumentError(f"lower: there is no target {to!r:.40}. {hint}")
    return cast("Form", importlib.import_module(f"maskwright.targets.{FILES[to]}"))


def _lower(form: Form, bound: BoundMask | Three, options: dict[str, Any]) -> Any:
    target = form.TARGET
    known = [
        name
        for name, given in inspect.signature(form.lower).parameters.items()
        if given.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"lower: {target.name} has no option {name}. Give one of {', '.join(known)}."
            )
    try:
        return form.lower(bound, **options)
    except ModuleNotFoundError as error:
        raise _missing(target, (error.name or "").split(".")[0]) from error
    except CannotSay as refusal:
        raise _unsupported(form, bound, options, refusal) from None


def _missing(target: Target, module: str) -> MissingError:
    fix = f"Run: pip install 'maskwright[{target.needs}]'"
    if target.needs == "keras" and module != "keras":
        fix = "Install it too, or choose another backend by KERAS_BACKEND."
    return MissingError(f"{target.name}: {module} is not installed. {fix}")


def _unsupported(
    form: Form, bound: BoundMask | Three, options: dict[str, Any], refusal: CannotSay
) -> Unsupported:
    """The refusal in words: which part of the expression it is about, and what to use instead."""

    def sayable(part: BoundMask) -> bool:
        try:
            form.lower(part, **options)
        except CannotSay:
            return False
        except SizeError:
            pass  # not known, so not to be named
        return True

    target = form.TARGET
    instead = f" Use {' or '.join(target.instead)}." if target.instead else ""
    if isinstance(refusal, LeavesEmpty):
        return _about_empty_rows(target, bound, refusal, options, instead)
    assert isinstance(bound, BoundMask)
    found = culprit(bound, sayable)
    why = f": {refusal}" if found.whole and str(refusal) else ""
    return Unsupported(
        f"{target.name} can say {target.says}, but not {found.brief}{why}.{instead}",
        target=target.name,
        term=found.term,
    )


def _about_empty_rows(
    target: Target,
    bound: BoundMask | Three,
    refusal: LeavesEmpty,
    options: dict[str, Any],
    instead: str,
) -> Unsupported:
    b, h, q = refusal.row
    parts = bound if isinstance(bound, tuple) else (bound,)
    part = next(
        part
        for part in parts
        if q < part.shape[2] and not part.spans.plane(0, b).plane(1, h).row(q)
    )
    found = culprit(part, lambda term: bool(term.spans.plane(0, b).plane(1, h).row(q)))
    row = f"row {q} of sequence {b}, head {h}"
    if options.get("empty_rows") == "error":
        return Unsupported(
            f"{target.name}: {found.brief} lets {row}, see nothing, and empty_rows='error' forbids "
            "that. Let the row see a key, or leave empty_rows out.",
            target=target.name,
            term=found.term,
        )
    return Unsupported(
        f"{target.name} gives no zero where a row sees nothing ({target.empty_rows}), and under "
        f"{found.brief} nothing is seen by {row}. "
        f"Pass empty_rows='native' to take what comes.{instead}",
        target=target.name,
        term=found.term,
    )


def _bind(
    mask: Any,
    form: Form,
    q_len: int | None,
    kv_len: int | None,
    batch: int | None,
    heads: int | None,
    q_start: int | None,
) -> BoundMask | Three:
    sizes = (q_len, kv_len, batch, heads, q_start)
    if form.TARGET.masks == 3:
        return _bind_three(mask, sizes)
    if isinstance(mask, tuple):
        raise ArgumentError(
            f"lower: {form.TARGET.name} takes one mask, not {len(mask)}. "
            "Lower them one by one, or all three for torch.transformer."
        )
    return _bind_one(mask, sizes)


def _bind_one(mask: Any, sizes: tuple[int | None, ...]) -> BoundMask:
    q_len, kv_len, batch, heads, q_start = sizes
    if isinstance(mask, BoundMask):
        if any(size is not None for size in sizes):
            raise ArgumentError(
                "lower: the mask is bound already, so it has its sizes. Leave them out."
            )
        return mask
    if not isinstance(mask, Mask):
        raise ArgumentError(
            f"lower: the mask is of type {type(mask).__name__}. Give a mask; "
            "wrap an array in dense(...), or read it with recognize(...)."
        )
    if q_len is None:
        queries, keys = mask.implied_sizes()
        kv_len = keys if kv_len is None else kv_len
        q_len = kv_len if queries is None else queries
        if q_len is None:
            raise ArgumentError(f"lower: {mask!r:.60} tells no length. Pass q_len=….")
    return mask.on(q_len, kv_len, batch, heads, q_start)


def _bind_three(masks: Any, sizes: tuple[int | None, ...]) -> Three:
    """The encoder's mask on the source, the decoder's on the target, and one of target × source."""
    if not isinstance(masks, tuple) or len(masks) != 3:
        raise ArgumentError(
            "lower: torch.transformer takes three masks. Give (encoder, decoder, cross), "
            "or recipes.translation(source, target)."
        )
    if any(isinstance(mask, BoundMask) for mask in masks):
        return _check_three(tuple(_bind_one(mask, sizes) for mask in masks))
    q_len, kv_len, batch, heads, q_start = sizes
    encoder, decoder, cross = masks
    source = _bind_one(encoder, (kv_len, None, batch, heads, None))
    target = _bind_one(decoder, (q_len, None, batch, heads, None))
    lengths = (target.frame.q_len, source.frame.kv_len)
    both = _bind_one(cross, (*lengths, batch, heads, q_start))
    if batch is None:  # one of the three may be all that tells how many sequences there are
        many = max(part.frame.batch for part in (source, target, both))
        source, target, both = (
            part if part.frame.batch == many else _bind_one(mask, (*own, many, heads, start))
            for mask, part, own, start in (
                (encoder, source, (lengths[1], None), None),
                (decoder, target, (lengths[0], None), None),
                (cross, both, lengths, q_start),
            )
        )
    return source, target, both


def _check_three(bound: Any) -> Three:
    """Refuse masks that are bound to sizes which do not belong together."""
    encoder, decoder, cross = (part.frame for part in bound)
    if (cross.q_len, cross.kv_len) != (decoder.q_len, encoder.kv_len) or (
        encoder.q_len != encoder.kv_len or decoder.q_len != decoder.kv_len
    ):
        raise FrameError(
            f"lower: the masks are bound to {encoder.q_len} × {encoder.kv_len}, {decoder.q_len} × "
            f"{decoder.kv_len} and {cross.q_len} × {cross.kv_len}. Bind them to S × S, T × T and T × S."
        )
    return cast("Three", bound)
