"""The values of biases: numpy arrays, or torch tensors, which stay differentiable.

No framework is imported. A value that is a torch tensor is kept as it is, so that gradients reach
it; anything else is read into a read-only numpy array.
"""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any, Final

import numpy as np

from maskwright.core.validate import describe_type, read_array
from maskwright.errors import ArgumentError, AttentionError, Unsupported

MASK_HINT: Final = (
    "A bias is finite: express which keys are visible as a mask, such as causal(), or split an "
    "additive mask with from_additive(tensor)."
)
_FLOATS: Final = ("f2", "f4", "f8")
_CHECKED: Final[dict[str, Any]] = {}  # torch tensors by identity, and the version that was checked


class Values:
    """The numbers of one argument of a bias.

    Arrays are copied, read-only and compared by content. Tensors are shared and compared by
    identity, because their content changes during training.

    >>> Values([1, 2], "x") == Values(np.array([1.0, 2.0], np.float32), "x")
    True
    """

    __slots__ = ("data", "what")

    data: Any  # a numpy array of a floating-point dtype, or a torch tensor
    what: str  # the argument, for messages

    def __init__(self, value: Any, what: str) -> None:
        self.what = what
        self.data = value if is_torch(value) else _freeze(read_array(value, what), what)
        if is_torch(value) and not value.is_floating_point():
            raise ArgumentError(f"{what} has dtype {value.dtype}. Pass floating-point numbers.")
        self.check_finite()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array or tensor."""
        return tuple(self.data.shape)

    def check_finite(self) -> None:
        """Raises ArgumentError for NaN and infinities in a tensor; an array cannot change.

        A tensor is checked once per version of its content, on the CPU only, and not while a graph
        is traced.
        """
        if not is_torch(self.data) or self.data.device.type != "cpu":
            return
        from maskwright._torch_state import has_values

        if not has_values(self.data):
            return
        tensor = self.data
        version = None if tensor.is_inference() else tensor._version
        checked = _checked_tensors()
        if version is not None and checked.get(tensor) == version:
            return
        content = tensor.detach()
        if not bool(content.isfinite().all()):
            odd = float(content[~content.isfinite()][0])
            raise ArgumentError(f"{self.what} contains {odd}. {MASK_HINT}")
        checked[tensor] = version

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values):
            return NotImplemented
        if is_torch(self.data) or is_torch(other.data):
            return self.data is other.data
        return self.shape == other.shape and bool((self.data == other.data).all())

    def __hash__(self) -> int:
        if is_torch(self.data):
            return id(self.data)
        return hash((self.shape, (self.data.astype(np.float64) + 0.0).tobytes()))  # no -0.0

    def __repr__(self) -> str:
        return repr(self.tolist())

    def tolist(self) -> Any:
        """The numbers as nested lists."""
        return (self.data.detach() if is_torch(self.data) else self.data).tolist()

    def __reduce__(self) -> tuple[type[Values], tuple[Any, str]]:
        return (Values, (self.data, self.what))


def is_torch(value: object) -> bool:
    """Whether this is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(values: Any, dtype: Any) -> Any:
    """The values as an array of a floating-point dtype, detached."""
    return np.asarray(values.detach().cpu().double() if is_torch(values) else values, dtype)


def take(values: Any, index: Any) -> Any:
    """`values[..., index]` for an integer array, contiguous."""
    if is_torch(values):
        torch = sys.modules["torch"]
        return values[..., torch.as_tensor(index, device=values.device)].contiguous()
    return np.ascontiguousarray(values[..., index])


def outer(values: Any, numbers: Any) -> Any:
    """The product of each value and each number, (values, numbers)."""
    if is_torch(values):
        torch = sys.modules["torch"]
        numbers = torch.as_tensor(numbers, dtype=values.dtype, device=values.device)
    return values[:, None] * numbers[None, :]


def add(left: Any, right: Any) -> Any:
    """The sum of arrays or tensors; an array is converted to the dtype and device of a tensor."""
    if is_torch(left) != is_torch(right):
        torch = sys.modules["torch"]
        like = left if is_torch(left) else right
        left, right = (
            part
            if is_torch(part)
            else torch.as_tensor(np.array(part)).to(like)  # a copy: the array is read-only
            for part in (left, right)
        )
    return left + right


def flip(values: Any, axes: tuple[int, ...]) -> Any:
    """The values in reverse order along the axes, in a new array."""
    return values.flip(axes) if is_torch(values) else np.ascontiguousarray(np.flip(values, axes))


def parse_factor(value: object, what: str) -> float:
    """A finite number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise ArgumentError(
            f"{what} is {describe_type(value)}. Multiply a bias by a number; multiply the values of "
            "the bias by anything else."
        )
    number = float(value)
    if not math.isfinite(number):
        raise ArgumentError(f"{what} is {number}. {MASK_HINT}")
    return number


def _freeze(array: Any, what: str) -> Any:
    """A read-only copy in a floating-point dtype."""
    if array.dtype.kind == "b":
        raise ArgumentError(
            f"{what} contains booleans. Pass numbers; which keys are visible is a mask: dense(...)."
        )
    if array.dtype.kind not in "fiu":
        raise ArgumentError(f"{what} has dtype {array.dtype}. Pass numbers.")
    kept = array.dtype.str[1:] in _FLOATS
    if not bool(np.isfinite(array).all()):
        raise ArgumentError(f"{what} contains {array[~np.isfinite(array)].flat[0]}. {MASK_HINT}")
    copy = np.array(array, array.dtype if kept else np.float64, order="C")
    copy.setflags(write=False)
    return copy


def check_memory(x: Any, name: str) -> None:
    """Raise for a torch tensor that a kernel cannot read: sparse, nested, of 8 bits, or a wrapper."""
    torch = sys.modules["torch"]
    if x.is_nested or x.layout != torch.strided:
        raise AttentionError(
            f"attention: {name} is a sparse or nested tensor. Pass a strided one, and pad or pack "
            "sequences of different lengths with mw.pad or mw.pack."
        )
    if x.is_floating_point() and x.itemsize == 1:
        raise wrong_dtype(name, x.dtype)
    if not torch.compiler.is_compiling():
        check_storage(x)
    if type(x) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return
    from maskwright._torch_state import is_opaque, is_wrapper_subclass

    if is_wrapper_subclass(x) or is_opaque(x):
        kind = type(x).__name__
        fix = (
            "its local tensor, x.to_local(), or use maskwright.parallel"
            if kind == "DTensor"
            else "the plain tensor that it wraps"
        )
        raise Unsupported(
            f"attention: {name} is a {kind}, whose data is in other tensors. Pass {fix}.",
            target="attention",
        )


def check_storage(*tensors: Any) -> None:
    """Raise for a torch tensor whose storage was freed, as by FSDP or `resize_(0)`."""
    from maskwright._torch_state import has_storage

    if has_storage(*tensors):
        return
    for x in tensors:
        if not has_storage(x):
            raise Unsupported(
                f"attention: a tensor of shape {tuple(x.shape)} has an empty storage: its memory was "
                "freed. Pass tensors with allocated storage, and keep it until the backward pass.",
                target="attention",
            )


def wrong_dtype(name: str, dtype: Any) -> AttentionError:
    """The error for a bias or sinks that are not floating-point numbers of at least 16 bits."""
    fix = "Pass a boolean mask as mask=mw.dense(...)." if name == "bias" else "Pass floats."
    return AttentionError(
        f"attention: {name} has dtype {dtype}, expected a floating-point one of at least 16 bits. {fix}"
    )


def _checked_tensors() -> Any:
    if "tensors" not in _CHECKED:
        _CHECKED["tensors"] = sys.modules["torch"].utils.weak.WeakIdKeyDictionary()
    return _CHECKED["tensors"]
