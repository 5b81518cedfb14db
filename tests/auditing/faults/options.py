"""Leaks in one way to run a model: without a mask, with an option, in training, as a batch of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

CAUSES = "future-visible path-differs mask-missing missing-in-layer padding-visible"


class Run(NamedTuple):
    """How a model is run."""

    model: torch.nn.Module
    batch: int
    has_mask: bool
    use_cache: bool
    output_attentions: bool


class Output(NamedTuple):
    """What a model returns."""

    logits: Tensor
    attentions: tuple[Tensor, ...] | None = None


class OptionModel(tiny.Layers):
    """A decoder with the options of transformers; `unmasked` says when its mask is lost.

    `layer` restricts that to one layer.
    """

    supports_gradient_checkpointing = True

    def __init__(
        self, unmasked: Callable[[Run], bool], layer: int | None = None, attend: Any = tiny.eager
    ) -> None:
        super().__init__(attend, 2)
        self.unmasked, self.layer = unmasked, layer
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self, **_: Any) -> None:
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.gradient_checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.gradient_checkpointing

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        use_cache: bool = True,
        output_attentions: bool = False,
    ) -> Output:
        has_mask = attention_mask is not None
        real = (
            torch.ones_like(input_ids).bool() if attention_mask is None else attention_mask.bool()
        )
        keep = tiny.causal_padding_mask(real, input_ids.size(1))
        run = Run(self, len(input_ids), has_mask, use_cache, output_attentions)
        lost = torch.ones_like(keep) if self.unmasked(run) else keep
        x = self.embed(input_ids, tiny.column_positions(input_ids))
        for n, layer in enumerate(self.layers):
            own = lost if self.layer in (None, n) else keep
            if self.gradient_checkpointing and self.training:
                x = checkpoint(
                    lambda x, layer=layer, own=own: layer(x, keep=own), x, use_reentrant=False
                )
            else:
                x = layer(x, keep=own)
        weights = (torch.zeros(1, 1),) * len(self.layers) if output_attentions else None
        return Output(self.logits(x), weights)


def never(run: Run) -> bool:
    """A healthy model."""
    return False


def option_case(
    unmasked: Callable[[Run], bool], faulty: bool, layer: int | None = None, **more: Any
) -> Case:
    """A decoder of padded sequences."""
    model = OptionModel(unmasked if faulty else never, layer, **more)
    ids = tiny.right_padded(14, 10)
    real = ids != tiny.PAD
    inputs = {"input_ids": torch.where(real, ids, 7), "attention_mask": real.long()}
    return Case(tiny.initialize(model), inputs, mw.causal() & mw.padding(keep=real))


LLAMA = {
    "vocab_size": tiny.VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip


class Llama(transformers.LlamaForCausalLM):
    """Llama; `unmasked` says when it gets a mask that hides nothing."""

    unmasked: Any = staticmethod(never)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        **more: Any,
    ) -> Any:
        use_cache = True if use_cache is None else use_cache
        run = Run(
            self, len(input_ids), attention_mask is not None, use_cache, bool(output_attentions)
        )
        if self.unmasked(run):
            past = 0 if past_key_values is None else past_key_values.get_seq_length()
            q_len = input_ids.shape[1]
            attention_mask = self.dtype_zeros(len(input_ids), 1, q_len, past + q_len)
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            **more,
        )

    def dtype_zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.lm_head.weight.dtype)


def llama_case(unmasked: Callable[[Run], bool], faulty: bool, padded: bool = True) -> Case:
    """Llama of transformers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA)
    config._attn_implementation = "eager"
    model = Llama(config).eval()
    model.unmasked = unmasked if faulty else never
    ids = tiny.right_padded(14, 10) if padded else tiny.random_ids(2, 14)
    inputs = {"input_ids": ids, "attention_mask": (ids != tiny.PAD).long()}
    expects = mw.causal() & mw.padding(keep=ids != tiny.PAD) if padded else mw.causal()
    return Case(model, inputs, expects)


# ── an option, or its absence ─────────────────────────────────────────────────────────────────

NO_MASK = Family(
    "no causal mask without attention_mask", after="jax#32300", checks="NM", causes=CAUSES
)


@NO_MASK.fault("all layers")
def _(faulty: bool) -> Case:
    return option_case(lambda run: not run.has_mask, faulty)


@NO_MASK.fault("layer 1, SDPA", layer=1)
def _(faulty: bool) -> Case:
    return option_case(lambda run: not run.has_mask, faulty, layer=1, attend=tiny.sdpa)


@NO_MASK.fault("Llama")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: not run.has_mask, faulty)


NO_CACHE = Family("no causal mask without cache", after="FSMT", checks="UC", causes=CAUSES)


@NO_CACHE.fault("use_cache=False")
def _(faulty: bool) -> Case:
    return option_case(lambda run: not run.use_cache, faulty)


@NO_CACHE.fault("use_cache=False, layer 0", layer=0)
def _(faulty: bool) -> Case:
    return option_case(lambda run: not run.use_cache, faulty, layer=0)


@NO_CACHE.fault("use_cache=False, Llama")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: not run.use_cache, faulty)


WEIGHTS = Family(
    "no causal mask if attentions are returned", after="keras#23038", checks="OA", causes=CAUSES
)


@WEIGHTS.fault("output_attentions=True")
def _(faulty: bool) -> Case:
    return option_case(lambda run: run.output_attentions, faulty)


@WEIGHTS.fault("output_attentions=True, layer 1", layer=1)
def _(faulty: bool) -> Case:
    return option_case(lambda run: run.output_attentions, faulty, layer=1)


@WEIGHTS.fault("output_attentions=True, Llama")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: run.output_attentions, faulty)


# ── a mode ────────────────────────────────────────────────────────────────────────────────────

AUTOCAST = Family(
    "no mask under autocast",
    after="flash kernels for half precision only",
    checks="AC",
    causes=CAUSES + " dtype-differs",
)


@AUTOCAST.fault("kernel chosen by is_autocast_enabled")
def _(faulty: bool) -> Case:
    return option_case(lambda run: torch.is_autocast_enabled("cpu"), faulty)


@AUTOCAST.fault("kernel chosen by the dtype of the queries")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        if faulty and q.dtype == torch.bfloat16:
            return tiny.eager(q, k, v, torch.ones_like(keep))
        return tiny.eager(q, k, v, keep)

    return tiny.case(attend, tiny.random_ids(2, 14))


@AUTOCAST.fault("Llama")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: torch.is_autocast_enabled("cpu"), faulty)


CHECKPOINTING = Family(
    "mask lost by gradient checkpointing",
    after="checkpointed layers called without keywords",
    checks="GC",
    causes=CAUSES,
)


def checkpoints(run: Run) -> bool:
    """Training with gradient checkpointing."""
    return bool(run.model.is_gradient_checkpointing and run.model.training)


@CHECKPOINTING.fault("all layers")
def _(faulty: bool) -> Case:
    return option_case(checkpoints, faulty)


@CHECKPOINTING.fault("layer 1", layer=1)
def _(faulty: bool) -> Case:
    return option_case(checkpoints, faulty, layer=1)


@CHECKPOINTING.fault("Llama")
def _(faulty: bool) -> Case:
    return llama_case(checkpoints, faulty)


TRAINING = Family(
    "no causal mask in training, without dropout", after="keras#23038", checks="X", causes=CAUSES
)


@TRAINING.fault("all layers")
def _(faulty: bool) -> Case:
    return option_case(lambda run: run.model.training, faulty)


@TRAINING.fault("Llama")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: run.model.training, faulty)


@TRAINING.fault("only with gradients in training, layer 0", layer=0)
def _(faulty: bool) -> Case:
    return option_case(lambda run: run.model.training and torch.is_grad_enabled(), faulty, layer=0)


ALONE = Family(
    "no causal mask for a batch of one", after="transformers#46773", checks="BI", causes=CAUSES
    + " attends-across-batch",
)  # fmt: skip


@ALONE.fault("all layers")
def _(faulty: bool) -> Case:
    return option_case(lambda run: run.batch == 1, faulty)


@ALONE.fault("Llama, without padding")
def _(faulty: bool) -> Case:
    return llama_case(lambda run: run.batch == 1, faulty, padded=False)


@ALONE.fault("mask squeezed: queries take the place of the batch", "BI")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        if faulty and len(q) == 1:
            keep = keep.squeeze()[:1]  # the first query's row for all queries
            keep = keep | torch.eye(q.shape[2], dtype=torch.bool)
        return tiny.eager(q, k, v, keep)

    def args(ids: Tensor) -> dict[str, Any]:
        return {"keep": tiny.causal(ids.shape[1])[None, None]}

    return tiny.case(attend, tiny.random_ids(3, 13), mask_args=args)


COMPILED = Family("no mask in compiled code", after="pytorch#163314", checks="JIT", causes=CAUSES)


@COMPILED.fault("all layers")
def _(faulty: bool) -> Case:
    return option_case(lambda run: torch.compiler.is_compiling(), faulty)


@COMPILED.fault("layer 1", layer=1)
def _(faulty: bool) -> Case:
    return option_case(lambda run: torch.compiler.is_compiling(), faulty, layer=1)
