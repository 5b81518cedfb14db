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
from maskwright.errors import ArgumentError

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
        if not is_torch(self.data) or self.data.device.type != "cpu" or not is_readable(self.data):
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


def add(one: Any, other: Any) -> Any:
    """The sum of arrays or tensors; an array is converted to the dtype and device of a tensor."""
    if is_torch(one) != is_torch(other):
        torch = sys.modules["torch"]
        like = one if is_torch(one) else other
        one, other = (
            part
            if is_torch(part)
            else torch.as_tensor(np.array(part)).to(like)  # a copy: the array is read-only
            for part in (one, other)
        )
    return one + other


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


def is_readable(tensor: Any) -> bool:
    """Whether a torch tensor has content: not while tracing, and not under transforms."""
    torch = sys.modules["torch"]
    return (
        not torch.compiler.is_compiling()
        and not is_recording()
        and tensor.device.type != "meta"
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)  # not a fake tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def is_recording() -> bool:
    """Whether make_fx traces: the values of a tensor cannot be read."""
    torch_c = sys.modules["torch"]._C
    if not torch_c._len_torch_dispatch_stack():
        return False
    return torch_c._get_dispatch_mode(torch_c._TorchDispatchModeKey.PROXY) is not None


def _checked_tensors() -> Any:
    if "tensors" not in _CHECKED:
        _CHECKED["tensors"] = sys.modules["torch"].utils.weak.WeakIdKeyDictionary()
    return _CHECKED["tensors"]
