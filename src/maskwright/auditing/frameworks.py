"""Models that are not PyTorch modules: functions of NumPy or JAX arrays, Keras models, generate().

`adapt` wraps such a model as a function of tensors, which the audit runs. Arrays are converted
without loss: bfloat16 stays bfloat16. The framework is recognized by the model and its inputs, and
none is imported here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from maskwright.core.atoms import everything, padding
from maskwright.errors import ArgumentError

MAX_NEW_TOKENS: Final = 4  # of a generation, if the caller sets none
GENERATION_INPUTS: Final = ("input_ids", "inputs")
GENERATION_PROBES: Final = ("leak", "reach", "padding", "batch", "numbers")
JAX_BACKENDS: Final = ("jax",)
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class AuditCall:
    """The arguments of `audit` that depend on the framework."""

    model: Any
    inputs: Any = None
    expects: Any = "auto"
    output: Callable[[Any], Any] | None = None
    step: Step | None = None
    paths: Mapping[str, Callable[..., Any]] | None = None
    probes: Sequence[str] | None = None


def adapt(call: AuditCall) -> AuditCall:
    """The same call with a PyTorch module, or a function of tensors.

    Calls of PyTorch models are returned unchanged.

    Raises:
        ArgumentError: If the inputs of a generation cannot be read.

    >>> import numpy as np
    >>> call = adapt(AuditCall(lambda x: x.cumsum(1), np.ones((1, 3, 2))))
    >>> call.model(call.inputs)[0, :, 0]
    tensor([1., 2., 3.], dtype=torch.float64)
    """
    owner = getattr(call.model, "__self__", None)
    if getattr(call.model, "__name__", "") == "generate" and isinstance(owner, nn.Module):
        return _adapt_generate(owner, call)
    framework = _framework_of(call.model, call.inputs)
    if framework is None:
        return call
    model = FrameworkModel(call.model, framework, call.output)
    inputs = _mapped(call.inputs, framework.is_array, framework.to_torch)
    step = None if call.step is None else partial(_step, call.step)
    return replace(call, model=model, inputs=inputs, output=None, step=step)


# ── arrays ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Framework:
    """How to convert arrays.

    Args:
        name: Of the framework.
        is_array: Whether a value is one of its arrays.
        to_native: Returns its array of a tensor.
        to_torch: Returns a tensor with the values of an array.
        call: Calls a model with arguments of the framework.
        vjp: `jax.vjp`, if the framework has gradients that are not PyTorch's.
        has_gradient: Whether gradients can be computed.
    """

    name: str
    is_array: Callable[[Any], bool]
    to_native: Callable[[torch.Tensor], Any]
    to_torch: Callable[[Any], torch.Tensor]
    call: Callable[..., Any]
    vjp: Callable[..., Any] | None = None
    has_gradient: bool = False


def _framework_of(model: Any, inputs: Any) -> Framework | None:
    """The framework of a model and its inputs; None for PyTorch."""
    keras: Any = sys.modules.get("keras")
    if keras is not None and isinstance(model, getattr(keras, "Layer", ())):
        return _keras(keras)
    found = _arrays_in(inputs)
    if isinstance(model, nn.Module) or any(isinstance(x, torch.Tensor) for x in found):
        return None
    jax: Any = sys.modules.get("jax")
    if jax is not None and any(isinstance(x, jax.Array) for x in found):
        return _jax(jax)
    if any(isinstance(x, np.ndarray) for x in found):
        return Framework("numpy", _is_numpy, _to_numpy, _from_numpy, _call)
    return None


def _jax(jax: Any) -> Framework:
    return Framework(
        "jax",
        lambda x: isinstance(x, (jax.Array, np.ndarray)),
        lambda x: jax.numpy.asarray(_to_numpy(x)),
        lambda x: _from_numpy(np.asarray(x)),
        _call,
        jax.vjp,
        has_gradient=True,
    )


def _keras(keras: Any) -> Framework:
    backend = keras.backend.backend()
    is_torch = backend == "torch"

    def to_native(x: torch.Tensor) -> Any:
        return x if is_torch else keras.ops.convert_to_tensor(_to_numpy(x))

    def to_torch(x: Any) -> torch.Tensor:
        return x if isinstance(x, torch.Tensor) else _from_numpy(keras.ops.convert_to_numpy(x))

    return Framework(
        f"keras ({backend})",
        lambda x: keras.ops.is_tensor(x) or isinstance(x, (np.ndarray, torch.Tensor)),
        to_native,
        to_torch,
        _call_keras,
        sys.modules["jax"].vjp if backend in JAX_BACKENDS else None,
        has_gradient=is_torch or backend in JAX_BACKENDS,
    )


def _is_numpy(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def _to_numpy(x: torch.Tensor) -> Any:
    x = x.detach().cpu()
    if x.dtype is not torch.bfloat16:
        return x.numpy()
    import ml_dtypes  # a dependency of JAX, the only source of bfloat16 arrays

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _from_numpy(x: np.ndarray[Any, Any]) -> torch.Tensor:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))  # a copy: arrays of JAX are read-only


def _arrays_in(value: Any) -> list[Any]:
    """The arrays in a structure of dicts, tuples and lists."""
    if isinstance(value, Mapping):
        return [x for part in value.values() for x in _arrays_in(part)]
    if isinstance(value, (tuple, list)):
        return [x for part in value for x in _arrays_in(part)]
    return [value] if hasattr(value, "shape") and hasattr(value, "dtype") else []


def _mapped(value: Any, chosen: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """A structure with a function applied to its chosen leaves."""
    if chosen(value):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, chosen, function) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, chosen, function) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(part, chosen, function) for part in value)
    return value


# ── calls ─────────────────────────────────────────────────────────────────────────────────────


class FrameworkModel:
    """A model of another framework as a function of tensors."""

    def __init__(
        self, model: Any, framework: Framework, output: Callable[[Any], Any] | None = None
    ) -> None:
        self.model, self.framework, self.output = model, framework, output
        self.__name__ = getattr(model, "__name__", None) or type(model).__name__
        try:
            own = model.call if hasattr(model, "call") else model
            self.__signature__ = inspect.signature(own)
        except (TypeError, ValueError):  # a compiled function may have none
            pass

    @property
    def has_gradient(self) -> bool:
        """Whether gradients can be computed."""
        return self.framework.has_gradient

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, as tensors."""
        given = [*args, *kwargs.values()]
        wanted = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
        if wanted and torch.is_grad_enabled() and self.framework.vjp is not None:
            return _Vjp.apply(self, args, kwargs, *wanted)
        return _mapped(
            self.native(*self.converted(args), **self.converted(kwargs)),
            self.framework.is_array,
            self.framework.to_torch,
        )

    def converted(self, value: Any) -> Any:
        """A structure with arrays of the framework instead of tensors."""
        return _mapped(value, lambda x: isinstance(x, torch.Tensor), self.framework.to_native)

    def native(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, or the output that was selected from it."""
        result = self.framework.call(self.model, *args, **kwargs)
        return result if self.output is None else self.output(result)


class _Vjp(torch.autograd.Function):  # type: ignore[misc]
    """A call of a JAX function, with the gradient by `jax.vjp`."""

    @staticmethod
    def forward(ctx: Any, model: FrameworkModel, args: Any, kwargs: Any, *wanted: Any) -> Any:
        """Runs the model, and keeps its pullback."""
        framework = model.framework
        assert framework.vjp is not None
        places = [id(x) for x in wanted]

        def run(*values: Any) -> Any:
            """The first array of floats in what the model returns."""
            found = dict(zip(places, values, strict=True))
            placed = partial(
                _mapped,
                chosen=lambda x: isinstance(x, torch.Tensor),
                function=lambda x: found[id(x)] if id(x) in found else framework.to_native(x),
            )
            result = model.native(*placed(args), **placed(kwargs))
            return next(x for x in _arrays_in(result) if "float" in str(x.dtype) and x.ndim > 1)

        out, ctx.pull = framework.vjp(run, *(framework.to_native(x) for x in wanted))
        ctx.framework = framework
        return framework.to_torch(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """The gradients of the tensors that need them."""
        framework = ctx.framework
        found = ctx.pull(framework.to_native(grad))
        return (None, None, None, *(framework.to_torch(x) for x in found))


def _call(model: Any, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _call_keras(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a Keras model in inference mode; a functional model takes its inputs as one structure."""
    if hasattr(model, "_inputs_struct"):
        given: Any = kwargs if kwargs else list(args)
        if kwargs and not isinstance(model._inputs_struct, Mapping):
            given = [kwargs[name] for name in model.input_names]
        if len(given) == 1 and not isinstance(model._inputs_struct, (Mapping, list, tuple)):
            [given] = given.values() if kwargs else given
        return model(given, training=False)
    return model(*args, **kwargs, training=False)


def _step(step: Step, model: FrameworkModel, piece: torch.Tensor, state: Any) -> tuple[Any, Any]:
    """A step with a cache, whose state stays in the arrays of the framework."""
    out, state = step(model.model, model.framework.to_native(piece), state)
    return _mapped(out, model.framework.is_array, model.framework.to_torch), state


# ── generation ────────────────────────────────────────────────────────────────────────────────


class Generation(nn.Module):  # type: ignore[misc]
    """Greedy generation with a model of transformers: returns the logits of the new tokens.

    >>> import torch, maskwright as mw
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> sizes = dict(n_embd=16, n_layer=1, n_head=2, vocab_size=20)
    >>> model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    >>> Generation(model)(torch.tensor([[3, 4, 5]])).shape
    torch.Size([1, 4, 20])
    """

    def __init__(self, model: Any, max_new_tokens: int = MAX_NEW_TOKENS) -> None:
        super().__init__()
        self.model, self.max_new_tokens = model, max_new_tokens
        self.main_input_name = getattr(model, "main_input_name", GENERATION_INPUTS[0])

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """(batch, new tokens, vocabulary)."""
        if args:
            kwargs = {self.main_input_name: args[0], **kwargs}
        size = kwargs.pop("max_new_tokens", self.max_new_tokens)
        found = self.model.generate(
            **kwargs,
            max_new_tokens=size,
            min_new_tokens=size,  # sequences that end early would have fewer outputs
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return torch.stack(found.logits, 1)


def _adapt_generate(owner: nn.Module, call: AuditCall) -> AuditCall:
    """A call of `model.generate`: the new tokens may depend on all real tokens of the input."""
    given = call.inputs
    inputs = {0: given} if isinstance(given, torch.Tensor) else given
    if not isinstance(inputs, Mapping):
        raise ArgumentError(
            "audit: inputs of generate are needed: a tensor of ids, or a dict of its arguments."
        )
    name = next((n for n in (*GENERATION_INPUTS, 0) if n in inputs), next(iter(inputs)))
    keep = inputs.get("attention_mask")
    expects = call.expects
    if not isinstance(expects, Mapping):
        own = everything() if keep is None else padding(keep=keep.bool().cpu().numpy())
        expects = {name: own}
    probes = GENERATION_PROBES if call.probes is None else call.probes
    return replace(call, model=Generation(owner), expects=expects, probes=probes)
