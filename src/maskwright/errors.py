"""Every exception that maskwright raises.

    MaskError (ValueError)
    ├── ArgumentError    an atom, operator or helper was given something it can't take
    ├── AuditError       a model does not respect its mask (an AssertionError too)
    ├── FrameError       the sizes asked for do not fit the mask, or a cell lies outside them
    ├── MissingError     a framework that the target needs is not installed (an ImportError too)
    ├── RankError        another process of a job does not answer (a RuntimeError too)
    ├── SizeError        the answer would be too large to build; the message names the way around
    ├── TextError        text or JSON that does not spell a mask
    ├── TruthError       a mask was used as a plain True or False (a TypeError too)
    └── Unsupported      a target can't say this mask; the message names the part that it can't

A message is one sentence of what was given and which rule it breaks, and one of what to do.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
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
    """The base of all errors that maskwright raises.

    >>> import maskwright as mw
    >>> try:
    ...     mw.window(back=-1)
    ... except mw.MaskError as error:
    ...     print(error)
    window: back=-1 is negative. Pass the number of keys from the query, 0 or more, or None for no limit.

    Where a mask was read from text, `at` is the first character that is at fault, and one past
    the last.

    >>> text = "causal() & windw(back=3)"
    >>> try:
    ...     mw.parse(text)
    ... except mw.MaskError as error:
    ...     print(text[slice(*error.at)])
    windw
    """

    at: tuple[int, int] | None = None


class ArgumentError(MaskError):
    """An atom, operator or helper was given something it can't take.

    >>> import maskwright as mw
    >>> mw.stride(0)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: stride: step=0 is less than 1. Pass 1 or more.
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


class FrameError(MaskError):
    """The sizes asked for do not fit the mask, or a cell lies outside them.

    >>> import maskwright as mw
    >>> mw.padding(lengths=[3, 9]).on(4)
    Traceback (most recent call last):
    maskwright.errors.FrameError: padding: lengths contains 9 but the frame has 4 keys. \
Pass kv_len=9 or more, or shorten the lengths.
    """


class MissingError(MaskError, ImportError):
    """A framework that the target needs is not installed; the message names the extra.

    >>> import maskwright as mw
    >>> raise mw.MissingError("jax: jax is not installed. Run: pip install 'maskwright[jax]'")
    Traceback (most recent call last):
    maskwright.errors.MissingError: jax: jax is not installed. Run: pip install 'maskwright[jax]'
    """


class RankError(MaskError, RuntimeError):
    """Another process of a job has died or hangs. `ranks` are those that do not answer.

    >>> from maskwright.errors import RankError
    >>> raise RankError("Rank 2 does not answer. Look there, and start the job again.", ranks=[2])
    Traceback (most recent call last):
    maskwright.errors.RankError: Rank 2 does not answer. Look there, and start the job again.
    """

    def __init__(self, message: str, *, ranks: list[int] | None = None) -> None:
        super().__init__(message)
        self.ranks = ranks or []


class SizeError(MaskError):
    """The answer would be too large to build; the message names the way around.

    >>> import maskwright as mw
    >>> mw.causal().on(1_000_000).dense()
    Traceback (most recent call last):
    maskwright.errors.SizeError: dense() would need 1000.0 GB, more than 8.6 GB. \
Use .spans, .tiles() or .rows(start, stop).
    """


class TextError(MaskError):
    """Text or JSON that does not spell a mask.

    >>> import maskwright as mw
    >>> mw.parse("casual()")
    Traceback (most recent call last):
    maskwright.errors.TextError: There is no atom casual. Did you mean causal?
    """


class TruthError(MaskError, TypeError):
    """A mask was used as a plain True or False, mostly by `and`, `or`, `not` or `if`.

    >>> import maskwright as mw
    >>> mw.causal() and mw.window(back=3)
    Traceback (most recent call last):
    maskwright.errors.TruthError: A mask has no boolean value. \
Write & for `and`, | for `or`, ~ for `not`.
    """


class Unsupported(MaskError):  # noqa: N818 - it is a refusal, not a fault
    """A target can't say this mask. `target` is its name, `term` the part that it can't say.

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
