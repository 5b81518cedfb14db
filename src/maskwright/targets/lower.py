"""The table of targets; `lower`, `explain_lowering` and `capabilities`."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from maskwright._registry import Registry
from maskwright.bias import Bias
from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.frame import merge_dims
from maskwright.errors import ArgumentError, FrameError, MissingError, SizeError, Unsupported
from maskwright.targets.base import EmptyRow, Target, TargetModule, Unrepresentable
from maskwright.targets.diagnose import find_unsupported_term
from maskwright.targets.scores import UnsupportedScore, read_target_scores, source_of
from maskwright.targets.scores import usage as score_usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.targets.base import EncDecMasks

TARGETS: Final[Registry[TargetModule]] = Registry(
    "target",
    "maskwright.targets",
    {
        "numpy": "dense:NumpyBool",
        "additive": "dense:NumpyAdditive",
        "torch.bool": "dense:TorchBool",
        "torch.additive": "dense:TorchAdditive",
        "torch.sdpa": "torch_sdpa",
        "torch.mha": "torch_mha",
        "torch.transformer": "torch_transformer",
        "torch.flex": "torch_flex",
        "hf": "transformers",
        "flash.varlen": "flash_varlen",
        "flashinfer": "flashinfer",
        "xformers": "xformers",
        "jax": "jax_nn",
        "jax.splash": "jax_splash",
        "keras": "keras",
        "tensorflow": "tensorflow",
        "onnx": "onnx",
        "flashmask": "flashmask",
        "cudnn": "cudnn",
        "magi": "magi",
    },
    aliases={"intervals": "cudnn", "slices": "magi", "transformers": "hf"},
)

SCORE_ALTERNATIVES: Final = {  # targets that take these arguments, the most general first
    "bias": ("torch.flex", "torch.sdpa", "onnx"),
    "softcap": ("torch.flex", "flash.varlen", "onnx"),
    "sinks": ("torch.flex", "jax.splash"),
}


def lower(
    mask: Mask | BoundMask | tuple[Any, ...],
    to: str,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_start: int | None = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    **options: Any,
) -> Any:
    """Converts a mask to the format of a framework, exactly, or raises `Unsupported`.

    Args:
        mask: A mask, or for "torch.transformer" the three masks (encoder, decoder, cross).
        to: The name of the target; `capabilities()` lists the names.
        q_len: The number of queries. Sizes may be omitted where the data of the mask implies
            them, and must be where the mask is bound.
        kv_len: The number of keys.
        batch: The number of sequences.
        heads: The number of heads.
        q_start: The position of the first query, as in `Mask.on()`.
        bias: A bias such as `mw.bias.alibi(8)`, or values that broadcast to (batch, heads, queries,
            keys), to be added to the scores. `Target.scores` says which targets take it, and how.
        softcap: The scores become `softcap * tanh(scores / softcap)` before the bias is added.
        sinks: One logit per head, (heads,), that joins the softmax without a value.
        **options: Options of the target, such as `device`, `dtype`, `fill` (the value of masked
            cells in an additive mask: "-inf", "min" or a number) and `empty_rows`: "zero" returns
            zero for a fully masked row or refuses the mask, "error" refuses any such mask,
            "native" accepts what the framework does.

    Returns:
        What the target's `Target.returns` describes.

    Raises:
        Unsupported: If the target cannot represent the mask, or the bias, soft cap or sinks; the
            error has the term.
        ArgumentError: For an unknown target or an invalid option.
        MissingError: If the framework is not installed.

    >>> import maskwright as mw
    >>> mw.lower(mw.causal(), "numpy", q_len=2).astype(int).tolist()
    [[[[1, 0], [1, 1]]]]
    >>> mw.lower(mw.window(back=0), "additive", q_len=2).tolist()
    [[[[0.0, -inf], [-inf, 0.0]]]]
    >>> mw.lower(mw.causal() | mw.prefix([3]), "flash.varlen", q_len=8)
    Traceback (most recent call last):
    maskwright.errors.Unsupported: flash.varlen supports causal, window and documents, and cannot \
represent prefix(lengths=[3]) under |. Use torch.flex or torch.bool.
    >>> mw.lower(mw.causal(), "additive", q_len=2, bias=mw.bias.alibi([0.5])).tolist()
    [[[[0.0, -inf], [-0.5, 0.0]]]]
    >>> mw.lower(mw.causal(), "torch.sdpa", q_len=2, softcap=50.0)
    Traceback (most recent call last):
    maskwright.errors.Unsupported: torch.sdpa cannot represent softcap=50.0. \
Use torch.flex or flash.varlen.
    """
    module = _find(to)
    sizes = _Sizes(q_len, kv_len, batch, _head_count(heads, mask, bias, sinks), q_start)
    bound = _bind(mask, module.TARGET, sizes)
    return _run(module, bound, _scores(module.TARGET, bound, bias, softcap, sinks), options)


def explain_lowering(
    mask: Mask | BoundMask | tuple[Any, ...],
    to: str,
    q_len: int | None = None,
    kv_len: int | None = None,
    *,
    batch: int | None = None,
    heads: int | None = None,
    q_start: int | None = None,
    bias: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    **options: Any,
) -> str:
    """Returns code that builds this mask in the framework and calls its attention.

    Args:
        mask: As for `lower`, with all other arguments.
        to: The name of the target.
        q_len: The number of queries.
        kv_len: The number of keys.
        batch: The number of sequences.
        heads: The number of heads.
        q_start: The position of the first query.
        bias: As for `lower`.
        softcap: As for `lower`.
        sinks: As for `lower`.
        **options: Options of the target.

    Returns:
        Python source.

    Raises:
        Unsupported: If the target cannot represent the mask.
        ArgumentError: If the mask contains `where(...)`, whose function has no source.

    >>> import maskwright as mw
    >>> print(mw.explain_lowering(mw.causal() & mw.padding(lengths=[2, 3]), "numpy", q_len=3))
    import numpy as np
    <BLANKLINE>
    row = np.arange(0, 3)[:, None]  # queries' positions
    col = np.arange(3)[None, :]  # keys' positions
    mask = np.broadcast_to((col <= row) & (col < np.array([2, 3])[:, None, None, None]), \
(2, 1, 3, 3))  # True keeps
    """
    module = _find(to)
    sizes = _Sizes(q_len, kv_len, batch, _head_count(heads, mask, bias, sinks), q_start)
    bound = _bind(mask, module.TARGET, sizes)
    scores = _scores(module.TARGET, bound, bias, softcap, sinks)
    lowered = _run(module, bound, scores, options)
    if scores is NO_SCORES:
        return "\n".join(module.usage(bound, lowered))
    assert isinstance(bound, BoundMask)
    return "\n".join(score_usage(bound, module.TARGET, scores, options))


def capabilities() -> dict[str, Target]:
    """Returns the capabilities of each target, by name.

    Returns:
        One `Target` per name.

    >>> import maskwright as mw
    >>> mw.capabilities()["torch.sdpa"].polarity, mw.capabilities()["torch.mha"].polarity
    ('True keeps', 'True masks')
    """
    return {name: module.TARGET for name, module in TARGETS.items()}


def _find(to: str) -> TargetModule:
    return _find_cached(to) if isinstance(to, str) else TARGETS.find(to, "lower")


@cache
def _find_cached(to: str) -> TargetModule:
    return TARGETS.find(to, "lower")


def _head_count(heads: int | None, mask: Any, bias: Any, sinks: Any) -> int | None:
    """The number of heads: as passed, else that of the sinks or the bias if the mask is for any."""
    if heads is not None or not isinstance(mask, Mask) or merge_dims(mask._dims)[1] != 1:
        return heads
    shape = getattr(sinks, "shape", None)
    if shape is not None and len(shape) == 1:
        return int(shape[0])
    if isinstance(sinks, (list, tuple)):
        return len(sinks)
    if isinstance(bias, Bias) and bias.planes[1] != 1:
        return bias.planes[1]
    return None


def _scores(
    target: Target, bound: BoundMask | EncDecMasks, bias: Any, softcap: Any, sinks: Any
) -> Scores:
    """The checked arguments; raises Unsupported for those that the target does not take."""
    if bias is None and softcap is None and sinks is None:
        return NO_SCORES
    first = bound[0] if isinstance(bound, tuple) else bound
    scores = read_target_scores(bias, softcap, sinks, first.frame)
    for name, term in source_of(scores).items():
        if name not in target.scores:
            raise _unsupported_score(target, name, term)
    return scores


def _unsupported_score(target: Target, name: str, term: str, reason: str = "") -> Unsupported:
    alternatives = [
        alternative for alternative in SCORE_ALTERNATIVES[name] if alternative != target.name
    ]
    reason = f": {reason}" if reason else ""
    text = f"{target.name} cannot represent {term}{reason}. Use {' or '.join(alternatives[:2])}."
    return Unsupported(text, target=target.name, term=term)


def _run(
    module: TargetModule, bound: BoundMask | EncDecMasks, scores: Scores, options: dict[str, Any]
) -> Any:
    target, known = module.TARGET, _option_names(module.lower)
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"lower: {target.name} has no option {name}. Pass one of {', '.join(known)}."
            )
    kwargs = options if scores is NO_SCORES else {**options, "scores": scores}
    try:
        return module.lower(bound, **kwargs)
    except ModuleNotFoundError as error:
        raise _missing(target, (error.name or "").split(".")[0]) from error
    except UnsupportedScore as refusal:
        raise _unsupported_score(target, "bias", refusal.term, str(refusal)) from None
    except Unrepresentable as refusal:
        raise _unsupported(module, bound, options, refusal) from None


@cache
def _option_names(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    names = (parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    return tuple(name for name in names if name != "scores")  # arguments of `lower` itself


def _missing(target: Target, package: str) -> MissingError:
    fix = f"Run: pip install 'maskwright[{target.requires}]'"
    if target.requires == "keras" and package != "keras":
        fix = "Install it too, or select another backend with KERAS_BACKEND."
    return MissingError(f"{target.name}: {package} is not installed. {fix}")


def _unsupported(
    module: TargetModule,
    bound: BoundMask | EncDecMasks,
    options: dict[str, Any],
    refusal: Unrepresentable,
) -> Unsupported:
    """The error with the term that the target cannot represent, and the alternatives."""

    def representable(part: BoundMask) -> bool:
        try:
            module.lower(part, **options)
        except Unrepresentable:
            return False
        except SizeError:
            pass  # undecided, so not reported as the cause
        return True

    target = module.TARGET
    use = f" Use {' or '.join(target.alternatives)}." if target.alternatives else ""
    if isinstance(refusal, EmptyRow):
        return _empty_row_error(target, bound, refusal, options.get("empty_rows"), use)
    assert isinstance(bound, BoundMask)
    cause = find_unsupported_term(bound, representable)
    reason = f": {refusal}" if cause.is_whole_mask and str(refusal) else ""
    if target.supports == "every mask":  # so an option excludes this one
        listed = ", ".join(f"{name}={value!r}" for name, value in options.items())
        text = f"{target.name} cannot represent {cause.description} with {listed}{reason}."
        use = " Omit the option that requires one representation."
    else:
        text = (
            f"{target.name} supports {target.supports}, and cannot represent "
            f"{cause.description}{reason}."
        )
    return Unsupported(text + use, target=target.name, term=cause.term)


def _empty_row_error(
    target: Target, bound: BoundMask | EncDecMasks, refusal: EmptyRow, option: object, use: str
) -> Unsupported:
    b, h, q = refusal.row
    parts = bound if isinstance(bound, tuple) else (bound,)
    part = next(
        part
        for part in parts
        if q < part.shape[2] and not part.spans.plane(0, b).plane(1, h).row(q)
    )
    cause = find_unsupported_term(
        part, lambda term: bool(term.spans.plane(0, b).plane(1, h).row(q))
    )
    row = f"row {q} of sequence {b}, head {h}"
    if option == "error":
        text = (
            f"{target.name}: {cause.description} fully masks {row}, and empty_rows='error' forbids "
            "that. Make a key visible to the row, or omit empty_rows."
        )
    else:
        text = (
            f"{target.name} does not return zero for a fully masked row ({target.empty_rows}), and "
            f"{cause.description} fully masks {row}. Pass empty_rows='native' to accept that.{use}"
        )
    return Unsupported(text, target=target.name, term=cause.term)


class _Sizes(NamedTuple):
    q_len: int | None
    kv_len: int | None
    batch: int | None
    heads: int | None
    q_start: int | None


def _bind(mask: Any, target: Target, sizes: _Sizes) -> BoundMask | EncDecMasks:
    if target.num_masks == 3:
        return _bind_encoder_decoder(mask, sizes)
    if isinstance(mask, tuple):
        raise ArgumentError(
            f"lower: {target.name} takes one mask, got {len(mask)}. "
            "Lower each of them, or all three to torch.transformer."
        )
    return _bind_mask(mask, sizes)


def _bind_mask(mask: Any, sizes: _Sizes) -> BoundMask:
    if isinstance(mask, BoundMask):
        if any(size is not None for size in sizes):
            raise ArgumentError("lower: the mask is already bound to its sizes. Omit the sizes.")
        return mask
    if not isinstance(mask, Mask):
        raise ArgumentError(
            f"lower: expected a mask, got {type(mask).__name__}. "
            "Wrap an array in dense(...), or find its expression with recognize(...)."
        )
    q_len, kv_len = sizes.q_len, sizes.kv_len
    if q_len is None:
        queries, keys = mask.implied_sizes()
        kv_len = keys if kv_len is None else kv_len
        q_len = kv_len if queries is None else queries
        if q_len is None:
            raise ArgumentError(f"lower: {mask!r:.60} does not imply a length. Pass q_len=….")
    return mask.on(q_len, kv_len, sizes.batch, sizes.heads, sizes.q_start)


def _bind_encoder_decoder(masks: Any, sizes: _Sizes) -> EncDecMasks:
    """Binds the encoder's mask to S × S, the decoder's to T × T and cross-attention's to T × S."""
    if not isinstance(masks, tuple) or len(masks) != 3:
        raise ArgumentError(
            "lower: torch.transformer takes three masks. Pass (encoder, decoder, cross), "
            "or recipes.translation(source, target)."
        )
    if any(isinstance(mask, BoundMask) for mask in masks):
        return _check_encoder_decoder(tuple(_bind_mask(mask, sizes) for mask in masks))

    def bind(source: int | None, target: int | None, batch: int | None) -> EncDecMasks:
        shared = sizes._replace(batch=batch)
        encoder = _bind_mask(masks[0], shared._replace(q_len=source, kv_len=None, q_start=None))
        decoder = _bind_mask(masks[1], shared._replace(q_len=target, kv_len=None, q_start=None))
        lengths = {"q_len": decoder.frame.q_len, "kv_len": encoder.frame.kv_len}
        return encoder, decoder, _bind_mask(masks[2], shared._replace(**lengths))

    bound = bind(sizes.kv_len, sizes.q_len, sizes.batch)
    batches = {part.frame.batch for part in bound}
    if sizes.batch is None and len(batches) > 1:  # one mask implies the batch size of all three
        bound = bind(bound[0].frame.kv_len, bound[1].frame.q_len, max(batches))
    return bound


def _check_encoder_decoder(bound: Any) -> EncDecMasks:
    """Raises FrameError for masks that are bound to inconsistent sizes."""
    encoder, decoder, cross = (part.frame for part in bound)
    if (cross.q_len, cross.kv_len) != (decoder.q_len, encoder.kv_len) or (
        encoder.q_len != encoder.kv_len or decoder.q_len != decoder.kv_len
    ):
        raise FrameError(
            f"lower: the masks are bound to {encoder.q_len} × {encoder.kv_len}, {decoder.q_len} × "
            f"{decoder.kv_len} and {cross.q_len} × {cross.kv_len}. Expected S × S, T × T and T × S."
        )
    return cast("EncDecMasks", bound)
