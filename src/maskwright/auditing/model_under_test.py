"""`ModelUnderTest`: a model with its inputs, which can be run, sliced, reordered and changed.

Whatever the model takes and returns, a probe works with outputs (batch, positions, features). Ids
are changed at the output of the embedding that reads them, so that padding stays padding; without
such an embedding they are replaced by other ids.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_map

from maskwright import _memory
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError

Key = str | int  # of an input: its keyword, or its index
Inputs = dict[Key, Any]
HALF_DTYPES: Final = (torch.bfloat16, torch.float16)
SIGNALS: Final = ("input_features", "input_values", "pixel_values", "pixel_values_videos")
OUTPUT_NAMES: Final = ("logits", "last_hidden_state", "prediction_logits", "sample")


@dataclass(frozen=True)
class Change:
    """A change of some positions of one input: `where` is (batch, positions)."""

    name: Key
    where: torch.Tensor
    fill: str = "noise"  # "noise", "large", "other" or "nan"
    seed: int = 0


@dataclass
class ModelUnderTest:
    """A model, its inputs, and how to read its output."""

    model: Callable[..., Any]
    inputs: Inputs
    main: Key  # the input whose positions the outputs have
    output: Callable[[Any], Any] | None = None
    pad_id: int | None = None
    seed: int = 0
    passes: int = 0
    embeddings: dict[Key, nn.Embedding | None] = field(default_factory=dict)
    caller: str = "audit"  # for error messages
    scalar_outputs: bool = False  # an output of two axes is (batch, positions)
    cast: torch.dtype | None = None  # the dtype that the weights are cast to while the model runs
    by_layer: bool = False  # the weights are cast layer by layer, to save memory

    @property
    def module(self) -> nn.Module | None:
        """The model if it is a module."""
        return self.model if isinstance(self.model, nn.Module) else None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return int(self.inputs[self.main].shape[0])

    def length(self, name: Key | None = None) -> int:
        """Number of positions of an input."""
        return int(self.inputs[self.main if name is None else name].shape[1])

    def has_ids(self, name: Key) -> bool:
        """Whether an input is ids that no embedding was seen to read."""
        return self.embeddings.get(name) is None and not self.inputs[name].is_floating_point()

    def copy_with(self, **changes: Any) -> ModelUnderTest:
        """A copy with other fields, and no passes yet."""
        return replace(self, **{"passes": 0, **changes})

    def count_passes_of(self, other: ModelUnderTest) -> None:
        """Adds the passes of a copy, once."""
        self.passes += other.passes
        other.passes = 0

    # ── running ───────────────────────────────────────────────────────────────────────────────

    def run(self, inputs: Inputs | None = None, change: Change | None = None) -> torch.Tensor:
        """Returns the output, (batch, positions, features), in its own dtype."""
        with torch.no_grad():
            return self.read_output(self.call(inputs, change))

    def call(
        self,
        inputs: Inputs | None = None,
        change: Change | None = None,
        variant: Callable[..., Any] | None = None,
    ) -> Any:
        """Returns what the model returns; `variant` is another way to call it."""
        given = dict(self.inputs if inputs is None else inputs)
        edited: Any = nullcontext()
        if change is not None:
            edited = self.edited(given, change.name, partial(self.changed, change=change))
        self.passes += 1
        with edited, self.casting(), fixed_seed(self.seed):
            args = [given[n] for n in sorted(key for key in given if isinstance(key, int))]
            kwargs = {key: x for key, x in given.items() if isinstance(key, str)}
            if variant is not None:
                return variant(self.model, *args, **kwargs)
            return self.model(*args, **kwargs)

    def casting(self) -> Any:
        """The context in which the model is called: layers may be cast while they run."""
        if self.cast is None or self.module is None:
            return nullcontext()
        layers = list(_layers_of(self.module)) if self.by_layer else [self.module]
        return _cast_weights(layers, self.cast)

    def run_variant(self, variant: Callable[..., Any]) -> torch.Tensor:
        """Returns the output of another way to call the model."""
        with torch.no_grad():
            return self.read_output(self.call(variant=variant))

    def pick_output(self, result: Any) -> Any:
        """The output tensor in what the model returned; None if there is none."""
        return self.output(result) if self.output is not None else first_tensor(result)

    def read_output(self, result: Any) -> torch.Tensor:
        """The output in what the model returned, (batch, positions, features)."""
        found = self.pick_output(result)
        if not isinstance(found, torch.Tensor) or found.dim() < 2:
            raise ArgumentError(
                f"{self.caller}: the model returned {describe_type(result)}, which contains no tensor "
                "(batch, positions, ...). Pass output=, a function that selects it from the result."
            )
        return self.with_features(found.detach())

    def with_features(self, output: torch.Tensor) -> torch.Tensor:
        """An output as (batch, positions, features)."""
        if output.dim() == 2:
            output = output[:, :, None] if self.scalar_outputs else output[:, None]
        return output.reshape(*output.shape[:2], -1)

    @contextmanager
    def edited(
        self, inputs: Inputs, name: Key, edit: Callable[[torch.Tensor], torch.Tensor]
    ) -> Iterator[None]:
        """Edits an input: the output of the embedding that reads it, or else the input itself."""
        embedding, x = self.embeddings.get(name), inputs[name]
        if embedding is None:
            inputs[name] = edit(x)
            yield
            return

        def hook(_: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
            return edit(out) if args and same_ids(args[0], x) else out

        with embedding.register_forward_hook(hook):
            yield

    # ── changing positions ────────────────────────────────────────────────────────────────────

    def changed(self, x: torch.Tensor, change: Change) -> torch.Tensor:
        """The tensor with other values at the positions of a change."""
        generator = torch.Generator().manual_seed(1 + change.seed)
        where = change.where.to(x.device)
        if not x.is_floating_point():
            return torch.where(where, self._other_ids(x, generator), x)
        wide = where.reshape(*where.shape, *(1,) * (x.dim() - 2))
        if change.fill == "other":
            # Values of other positions: of the same distribution as the original ones.
            by = 1 + int(torch.randint(max(x.shape[1] - 1, 1), (1,), generator=generator))
            other = x.roll(by, 1) + _noise(x, generator, 0.3)
        elif change.fill == "nan":
            other = torch.full_like(x, torch.nan)
        else:
            other = _noise(x, generator, 30.0 if change.fill == "large" else 3.0)
        return torch.where(wide, other.to(x.dtype), x)

    def _other_ids(self, ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        known = ids.unique()
        if self.pad_id is not None:
            known = known[known != self.pad_id]
        if known.numel() < 2:
            known = torch.arange(1, 3, device=ids.device)
        drawn = torch.randint(known.numel(), ids.shape, generator=generator).to(ids.device)
        other = known[drawn]
        return torch.where(other == ids, known[(drawn + 1) % known.numel()], other).to(ids.dtype)

    def changeable(self, name: Key, padding: torch.Tensor) -> torch.Tensor:
        """The positions that can be changed without turning padding into tokens."""
        by_ids = self.has_ids(name) and not self._has_padding_mask(name, padding)
        return ~padding if by_ids else torch.ones_like(padding)

    def _has_padding_mask(self, name: Key, padding: torch.Tensor) -> bool:
        """Whether another input is the padding mask of this one, so that ids do not decide."""
        return any(
            isinstance(x, torch.Tensor)
            and x.shape == padding.shape
            and self._belongs_to(key, name)
            and torch.equal(x.cpu().bool(), ~padding)
            for key, x in self.inputs.items()
        )

    # ── selecting sequences and positions ─────────────────────────────────────────────────────

    @property
    def has_mask_input(self) -> bool:
        """Whether an input is a maskwright mask, which cannot be sliced with the other inputs."""
        return any(isinstance(x, (Mask, BoundMask)) for x in self.inputs.values())

    def select_sequences(self, rows: list[int]) -> Inputs:
        """The inputs of these sequences, in this order."""
        index = torch.tensor(rows)
        return {
            name: x.index_select(0, index.to(x.device)) if self._has_batch_axis(x) else x
            for name, x in self.inputs.items()
        }

    def _has_batch_axis(self, x: Any) -> bool:
        """Whether the first axis of a tensor is the batch; lengths (batch,) have one too."""
        if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] != self.batch:
            return False
        if x.dim() == 1:
            return not x.is_floating_point() and self.batch != self.length()
        return tuple(x.shape) != (self.length(), self.length())

    @property
    def has_lengths(self) -> bool:
        """Whether an input counts positions: lengths, or offsets of packed sequences."""
        return any(
            isinstance(x, torch.Tensor)
            and x.dim() == 1
            and not x.is_floating_point()
            and x.dtype != torch.bool
            and x.shape[0] != self.length()
            for x in self.inputs.values()
        )

    def select_positions(self, name: Key, keep: list[int], inputs: Inputs | None = None) -> Inputs:
        """The inputs with these positions of one input; masks over its positions are sliced too."""
        length = self.length(name)
        index = torch.tensor(keep, dtype=torch.long)
        found = dict(self.inputs if inputs is None else inputs)
        for key, x in found.items():
            for axis in self.position_axes(key, x, name, length):
                found[key] = found[key].index_select(axis, index.to(x.device))
        return found

    def position_axes(self, key: Key, x: Any, name: Key, length: int) -> list[int]:
        """The axes of input `key` that are the positions of input `name`."""
        if not isinstance(x, torch.Tensor):
            return []
        if key == name:
            return [1]
        if is_signal(key, x) or not self._belongs_to(key, name):
            return []
        if x.dim() == 1:
            return [0] if x.shape[0] == length else []
        first = 0 if tuple(x.shape) == (length, length) else 1
        last = 2 if x.is_floating_point() and x.dim() == 3 and x.shape[-1] != length else x.dim()
        return [axis for axis in range(first, last) if x.shape[axis] == length]

    def _belongs_to(self, key: Key, name: Key) -> bool:
        """Whether input `key` may be a mask over input `name`, by its name.

        A name that resembles neither input, such as attention_mask beside decoder_input_ids, belongs
        to the encoder: the inputs of a decoder are named after it.
        """
        if key in self.embeddings:
            return False
        if len(self.embeddings) < 2 or not isinstance(key, str):
            return True
        common = {other: _common_prefix(key, str(other)) for other in self.embeddings}
        if max(common.values()) == min(common.values()):
            return "decoder" not in str(self.main) or name != self.main
        return common[name] == max(common.values())

    def has_square_mask(self, name: Key) -> bool:
        """Whether an input is a mask over queries and keys, which cannot be extended."""
        length = self.length(name)
        return any(
            len(self.position_axes(key, x, name, length)) > 1 for key, x in self.inputs.items()
        )


# ── construction ──────────────────────────────────────────────────────────────────────────────


def make_model_under_test(
    model: Any,
    inputs: Any,
    *,
    names: tuple[Key, ...] = (),
    output: Callable[[Any], Any] | None = None,
    pad_id: int | None = None,
    seed: int = 0,
    caller: str = "audit",
) -> ModelUnderTest:
    """Checks a model and its inputs; `names` are the inputs that have positions to change."""
    if not callable(model):
        raise ArgumentError(
            f"{caller}: model is {describe_type(model)}. Pass a function or module."
        )
    given = _read_inputs(inputs, caller)
    found = (
        names
        or tuple(
            name
            for name, x in given.items()
            if isinstance(x, torch.Tensor) and _has_positions(x) and not is_signal(name, x)
        )[:1]
    )
    for name in names:
        if name not in given:
            known = ", ".join(map(str, given))
            raise ArgumentError(
                f"{caller}: there is no input {name!r}; the inputs are {known}. Pass one of these."
            )
    if not found:
        raise ArgumentError(
            f"{caller}: no input is ids (batch, positions) or floats (batch, positions, features). "
            "Pass a tensor, or a dict of the model's arguments."
        )
    main = found[-1]  # of an encoder-decoder model, the decoder's
    return ModelUnderTest(
        model, given, main, output, pad_id, seed, embeddings=dict.fromkeys(found), caller=caller
    )


def find_embeddings(tested: ModelUnderTest) -> Any:
    """Finds the embeddings that read the ids, by running the model once; returns what it returns."""
    module = tested.module
    if module is None:
        return tested.call()
    reads: list[tuple[nn.Embedding, Any]] = []

    def read(embedding: Any, args: Any) -> None:
        reads.append((embedding, args[0] if args else None))

    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                hooks.enter_context(part.register_forward_pre_hook(read))
        with torch.no_grad():
            result = tested.call()
    for name in tested.embeddings:
        ids = tested.inputs[name]
        if not ids.is_floating_point():
            tested.embeddings[name] = next((m for m, read in reads if same_ids(read, ids)), None)
    return result


def has_scalar_outputs(tested: ModelUnderTest, out: torch.Tensor) -> bool:
    """Whether the features of a single output are really positions: fewer inputs give fewer."""
    length = tested.length()
    if length < 2 or out.shape[1:] != (1, length):
        return False
    try:
        fewer = tested.run(tested.select_positions(tested.main, list(range(length - 1))))
    except Exception:  # a model of one length only
        return False
    return bool(fewer.shape[1:] == (1, length - 1))


def _read_inputs(inputs: Any, caller: str) -> Inputs:
    if isinstance(inputs, torch.Tensor):
        return {0: inputs}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return dict(enumerate(inputs))
    raise ArgumentError(
        f"{caller}: inputs is {describe_type(inputs)}. Pass a tensor, a tuple of arguments, or a "
        "dict of keyword arguments."
    )


def _has_positions(x: torch.Tensor) -> bool:
    return bool(x.dim() == 3 if x.is_floating_point() else x.dim() == 2 and x.dtype != torch.bool)


def is_signal(name: Key, x: torch.Tensor) -> bool:
    """Whether an input is audio or images, whose axes are not the positions of tokens."""
    return x.is_floating_point() and str(name) in SIGNALS


def same_ids(read: Any, ids: Any) -> bool:
    """Whether what an embedding read is this input."""
    return (
        isinstance(read, torch.Tensor)
        and read.shape == ids.shape
        and (read is ids or bool(torch.equal(read, ids.to(read.dtype))))
    )


def _common_prefix(one: str, other: str) -> int:
    """Number of words that two names start with in common; most if one continues the other."""
    if one.startswith(other):
        return len(other)
    pairs = zip(one.split("_"), other.split("_"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _noise(x: torch.Tensor, generator: torch.Generator, scale: float) -> torch.Tensor:
    std = float(x.detach().double().std(unbiased=False)) if x.numel() > 1 else 0.0
    drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    return (drawn * (std if std > 0 else 1.0) * scale).to(x.device, x.dtype)


def first_tensor(result: Any) -> torch.Tensor | None:
    """The output in what a model returned: a tensor, the first of a tuple, or one by its name."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping) or hasattr(result, "keys"):
        held = dict(result.items())
        for name in OUTPUT_NAMES:
            if isinstance(held.get(name), torch.Tensor):
                found: torch.Tensor = held[name]
                return found
        result = tuple(held.values())
    if isinstance(result, (tuple, list)):
        for part in result:
            inner = first_tensor(part)
            if inner is not None and inner.is_floating_point() and inner.dim() > 1:
                return inner
    return None


def to_dtype(tested: ModelUnderTest, dtype: torch.dtype) -> ModelUnderTest | None:
    """A copy of the model and its inputs in another dtype; None if it cannot be made."""
    module = tested.module
    if module is None or tested.cast is not None:
        return None
    try:
        other = copy.deepcopy(module).to(dtype)
        if dtype == torch.float64 and hasattr(other, "set_experts_implementation"):
            other.set_experts_implementation("eager")  # grouped matmuls have no float64
    except Exception:  # a module may hold anything that cannot be copied
        return None
    inputs = {
        name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in tested.inputs.items()
    }
    twin = tested.copy_with(model=other, inputs=inputs, embeddings=dict.fromkeys(tested.embeddings))
    names = {id(part): name for name, part in module.named_modules()}
    for name, embedding in tested.embeddings.items():
        if embedding is not None:
            found = other.get_submodule(names[id(embedding)])
            assert isinstance(found, nn.Embedding)
            twin.embeddings[name] = found
    return twin


def in_float32(tested: ModelUnderTest) -> ModelUnderTest | None:
    """A model in half precision, computed in float32: a copy, or layer by layer to save memory.

    None if the model is not in half precision, or does not run in float32.
    """
    module = tested.module
    weights = [] if module is None else [w for w in module.parameters() if w.is_floating_point()]
    if not any(w.dtype in HALF_DTYPES for w in weights):
        return None
    needed = 4 * sum(w.numel() for w in weights)
    makers: list[Callable[[], ModelUnderTest | None]] = [
        partial(to_dtype, tested, torch.float32),
        partial(cast_while_running, tested, torch.float32),
        partial(cast_while_running, tested, torch.float32, by_layer=True),
    ]
    for make in makers if 2 * needed < free_memory(weights[0].device) else makers[2:]:
        other = make()
        try:
            if other is not None and other.run().dtype not in HALF_DTYPES:
                return other
        except Exception:  # a model that runs in its own dtype only
            continue
        finally:
            if other is not None:
                tested.count_passes_of(other)
    return None


def cast_while_running(
    tested: ModelUnderTest, dtype: torch.dtype, by_layer: bool = False
) -> ModelUnderTest | None:
    """The same model, whose weights are cast while it runs: for models that cannot be copied."""
    if tested.module is None or tested.cast is not None:
        return None
    inputs = {name: _cast(x, dtype) for name, x in tested.inputs.items()}
    return tested.copy_with(inputs=inputs, cast=dtype, by_layer=by_layer)


def free_memory(device: torch.device) -> float:
    """The free memory of a device, in bytes; unlimited if it is not known."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return _memory.free_memory()


@contextmanager
def _cast_weights(layers: list[nn.Module], dtype: torch.dtype) -> Iterator[None]:
    """Casts the weights and inputs of each layer while it runs; its outputs stay as they are."""
    kept: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def enter(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        held = [x for x in (*layer.parameters(), *layer.buffers()) if x.is_floating_point()]
        kept[layer] = [(x, x.data) for x in held]
        for x in held:
            x.data = x.data.to(dtype)
        cast = partial(_cast, dtype=dtype)
        return tree_map(cast, args), tree_map(cast, kwargs)

    def leave(layer: nn.Module, *_: Any) -> None:
        for x, data in kept.pop(layer, ()):
            x.data = data

    with ExitStack() as hooks:
        for layer in layers:
            before = layer.register_forward_pre_hook(enter, with_kwargs=True)
            hooks.enter_context(before)
            hooks.enter_context(layer.register_forward_hook(leave, always_call=True))
        yield


def _layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model: the items of its lists of modules, and other modules with weights."""
    if isinstance(module, nn.ModuleList):
        yield from module
    elif any(True for _ in module.parameters(recurse=False)):
        yield module
    else:
        for child in module.children():
            yield from _layers_of(child)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def forward_parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of the model's forward; empty if it has no signature."""
    try:
        return inspect.signature(
            model.forward if isinstance(model, nn.Module) else model
        ).parameters
    except (TypeError, ValueError):
        return {}


def accepts_argument(model: Any, name: str, *, var_keyword: bool = False) -> bool:
    """Whether the model's forward has an argument of this name; `var_keyword`: or **kwargs."""
    parameters = forward_parameters(model)
    return name in parameters or (
        var_keyword and any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    )


# ── determinism ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Seeds the random number generators, and restores their state afterwards.

    Devices that are not in use are left alone: torch.manual_seed would initialize them, slowly.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Turns dropout off, and restores training flags, buffers and gradients afterwards."""
    if not isinstance(model, nn.Module):
        yield
        return
    flags = [(part, part.training) for part in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    model.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag
        with torch.no_grad():
            for buffer, kept in buffers:
                if buffer.shape == kept.shape:
                    buffer.copy_(kept)
        for weight, grad in grads:
            weight.grad = grad
