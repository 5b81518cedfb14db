"""The exceptions that maskwright raises.

    MaskError (ValueError)
    ├── ArgumentError    an argument is invalid
    │   └── AttentionError   an argument of attention (also a RuntimeError, as PyTorch's)
    ├── AuditError       a model does not respect its mask (also an AssertionError)
    ├── FrameError       the sizes do not fit the mask, or a cell is outside them (also a RuntimeError)
    ├── MissingError     a package is not installed (also an ImportError)
    ├── RankError        another process of a job does not respond (also a RuntimeError)
    ├── SizeError        the result would be too large
    ├── TextError        text or JSON that is not a mask
    ├── TruthError       a mask was used as a boolean (also a TypeError)
    └── Unsupported      a target cannot represent this mask (also a RuntimeError)

A message names the argument, the value and the rule, and then the fix.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "AttentionError",
    "AuditError",
    "FrameError",
    "MaskError",
    "MissingError",
    "RankError",
    "SizeError",
    "TextError",
    "TruthError",
    "Unsupported",
]


class MaskError(ValueError):
    """Base class of the errors in masks, arguments and models.

    >>> import maskwright as mw
    >>> try:
    ...     mw.window(back=-1)
    ... except mw.MaskError as error:
    ...     print(error)
    window: back=-1 is negative. Pass the number of keys from the query, 0 or more, or None for no limit.

    If a mask was parsed from text, `at` is the position of the first character at fault, and one
    past the last.

    >>> text = "causal() & windw(back=3)"
    >>> try:
    ...     mw.parse(text)
    ... except mw.MaskError as error:
    ...     print(text[slice(*error.at)])
    windw
    """

    at: tuple[int, int] | None = None


class ArgumentError(MaskError):
    """An argument is invalid.

    >>> import maskwright as mw
    >>> mw.stride(0)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: stride: step=0 is less than 1. Pass 1 or more.
    """


class AttentionError(ArgumentError, RuntimeError):
    """An argument of `attention` is invalid, or tensors do not fit each other.

    `scaled_dot_product_attention` raises RuntimeError in these cases, so this is one, too.

    >>> import torch, maskwright as mw
    >>> q, k = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 16)
    >>> mw.attention(q, k, k)
    Traceback (most recent call last):
    maskwright.errors.AttentionError: attention: q and k have different head_dim: \
q (1, 2, 4, 8), k (1, 2, 4, 16), v (1, 2, 4, 16). Only v may have another one.
    """


class AuditError(MaskError, AssertionError):
    """A model does not respect its mask; the message is the report.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(lambda x: x.flip(1), torch.randn(1, 4, 2), expects="causal")
    >>> try:
    ...     report.assert_ok()
    ... except mw.AuditError as error:
    ...     print(str(error).split(" (")[0])
    model does not respect causal()
    """


class FrameError(MaskError, RuntimeError):
    """The sizes do not fit the mask, or a cell is outside them.

    >>> import maskwright as mw
    >>> mw.padding(lengths=[3, 9]).on(4)
    Traceback (most recent call last):
    maskwright.errors.FrameError: padding: lengths contains 9 but the frame has 4 keys. \
Pass kv_len=9 or more, or shorten the lengths.
    """


class MissingError(MaskError, ImportError):
    """A package is not installed; the message names the extra that installs it.

    >>> import maskwright as mw
    >>> raise mw.MissingError("jax: jax is not installed. Run: pip install 'maskwright[jax]'")
    Traceback (most recent call last):
    maskwright.errors.MissingError: jax: jax is not installed. Run: pip install 'maskwright[jax]'
    """


class RankError(MaskError, RuntimeError):
    """Another process of a job has died or hangs. `ranks` are those that do not respond.

    >>> from maskwright.errors import RankError
    >>> raise RankError("Rank 2 does not answer. Look there, and start the job again.", ranks=[2])
    Traceback (most recent call last):
    maskwright.errors.RankError: Rank 2 does not answer. Look there, and start the job again.
    """

    def __init__(self, message: str, *, ranks: list[int] | None = None) -> None:
        super().__init__(message)
        self.ranks = ranks or []


class SizeError(MaskError):
    """The result would be too large; the message names an alternative.

    >>> import maskwright as mw
    >>> mw.causal().on(1_000_000).dense()
    Traceback (most recent call last):
    maskwright.errors.SizeError: dense() would need 1000.0 GB, more than 8.6 GB. \
Use .spans, .tiles() or .rows(start, stop).
    """


class TextError(MaskError):
    """Text or JSON that is not a mask.

    >>> import maskwright as mw
    >>> mw.parse("casual()")
    Traceback (most recent call last):
    maskwright.errors.TextError: There is no atom casual. Did you mean causal?
    """


class TruthError(MaskError, TypeError):
    """A mask was used as a boolean, by `and`, `or`, `not` or `if`.

    >>> import maskwright as mw
    >>> mw.causal() and mw.window(back=3)
    Traceback (most recent call last):
    maskwright.errors.TruthError: A mask has no boolean value. \
Write & for `and`, | for `or`, ~ for `not`.
    """


class Unsupported(MaskError, RuntimeError):  # noqa: N818 - it is a refusal, not a fault
    """A target cannot represent this mask. `target` is its name, `term` the part at fault.

    >>> import maskwright as mw
    >>> try:
    ...     mw.lower(mw.causal() | mw.prefix([3]), "flash.varlen", q_len=8)
    ... except mw.Unsupported as refusal:
    ...     print(refusal.term)
    prefix(lengths=[3])
    """

    def __init__(self, message: str, *, target: str = "", term: str = "") -> None:  # noqa: ARG002
        # The message is stored by __new__; torch.compile cannot trace super().__init__ here.
        self.target = target
        self.term = term
