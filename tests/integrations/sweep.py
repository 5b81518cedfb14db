"""Every model family of the installed transformers on maskwright's attention, beside its own "eager" one.

    python -m tests.integrations.sweep [--seconds N] [family ...]

writes one JSON line per family and check: family, check, result, reason. A family is a model type of
`AutoConfig`; without names all of them run, each in a process of its own. Each gets a tiny config with
random weights. Checks are `CHECKS`; results are

    equal          outputs of both are within the tolerance
    different      they are not: a bug
    by design      they are not, for a reason of `BY_DESIGN`
    refused        maskwright raised one of its errors; the reason is its message
    error          another error with maskwright, and none with eager: a bug
    not used       eager and maskwright agree, but no layer called the attention interface
    not run        the check does not apply, or eager itself fails; the reason says why

The exit code is 1 if a result is `different` or `error`, or if a family that is refused is not in
`UNSUPPORTED_MODELS`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import multiprocessing
import re
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
import transformers
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from maskwright.errors import MaskError
from maskwright.integrations.transformers import NAME, UNSUPPORTED_MODELS, register
from tests._helpers.more_architectures import FLOATS, MORE
from tests._helpers.tiny_architectures import ARCHITECTURES
from tests._helpers.tiny_models import ALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKS: Final = ("forward", "padded", "generate", "generate_padded", "gradient", "attentions")
BUGS: Final = ("different", "error")
BATCH: Final = 2
LENGTH: Final = 12
NEW_TOKENS: Final = 5
VOCABULARY: Final = 100
WEIGHT_SCALE: Final = 3.0  # initial weights are too small to show a wrong mask
TOLERANCE: Final = 1e-4  # relative to the largest value
INTERFACE: Final = "ALL_ATTENTION_FUNCTIONS"
MAX_PARAMETERS: Final = 30_000_000  # of a config that did not become tiny
HEADS: Final = (  # the model classes that are tried, the first that has the family
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
)


# Differences that are none of ours.
SINKS_LEFT_OUT: Final = "eager's weights leave out the sinks that its outputs have"
BY_DESIGN: Final = {
    ("granite_swa", "attentions"): SINKS_LEFT_OUT,
    ("granitemoe_swa", "attentions"): SINKS_LEFT_OUT,
}
# Refused calls of families that run otherwise.
REFUSED_CALLS: Final = {
    ("recurrent_gemma", "generate_padded"): "its cache makes a mask of one key for a decode step"
}


class Result(NamedTuple):
    """The result of one check of one family."""

    family: str
    check: str
    result: str
    reason: str = ""


class NotRun(Exception):  # noqa: N818 - not an error
    """A check does not apply to a family."""


# ── configs ───────────────────────────────────────────────────────────────────────────────────


# Sizes of configs by name, the first pattern that matches the whole name.
SIZES: Final[tuple[tuple[str, Any], ...]] = (
    (r".*(drop|dropout|pdrop|layerdrop)(_path)?(_rate|_prob|_p)?", 0.0),
    (r"attention_probs_dropout|.*_dropout_prob", 0.0),
    (r"mask_(time|feature)_prob|router_jitter_noise|noise_.*", 0.0),
    (r"(codebook|audio|text|speech)?_?vocab_size(_per_layer_input)?|n_vocab", VOCABULARY),
    (r"pad_token_id", 0),
    (r"bos_token_id", 1),
    (r"eos_token_id|decoder_start_token_id|sep_token_id", 2),
    (r"forced_.*|suppress_tokens|begin_suppress_tokens", None),
    (r"(image|video|audio|vision|speech|boi|eoi|boa|eoa|mask|cls)_.*token_(id|index)", 98),
    (r".*(image|video|audio|vision)_(token|start|end)\w*", 98),
    (r"num_key_value_heads|.*num_key_value_heads|num_kv_heads|num_query_groups", 2),
    (r"index_n_heads", 16),
    (r"mamba_n_heads|n_mamba_heads|mamba_num_heads", 8),
    (r".*num_.*heads|n_heads?|.*_heads|num_heads|n_head", 4),
    (r"num_linear_.*heads|linear_num_key_heads", 2),
    (r".*(num_hidden_layers|num_layers|n_layers?|_layers|depth|num_blocks)", 2),
    (r"(global_|swa_)?head_dim|d_kv|kv_channels|.*_head_dim|mamba_d_head|mamba_headdim", 8),
    (r"moe_intermediate_size|expert_ffn_hidden_size|shared_expert_intermediate_size", 16),
    (r"\w*(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|d_inner|mlp_dim)\w*", 48),
    (r"(embedding_size|input_embedding_size|output_embedding_size|projection_dim)", 16),
    (r"(q|kv|o)_lora_rank", 16),
    (r"\w*(hidden_size|d_model|n_embd|emb_dim|embed_dim|hidden_dim|model_dim|width)", 32),
    (r"dim|word_embed_proj_dim|lru_width|mamba_d_ssm", 32),
    (r"num_local_experts|num_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_k|moe_topk|top_k_experts", 2),
    (r"n_group|topk_group|first_k_dense_replace|n_shared_experts|moe_num_shared_experts", 1),
    (r"index_topk", 6),
    (r"mamba_d_state|state_size|ssm_state_size", 8),
    (r"mamba_n_groups|mamba_ngroups|n_groups", 1),
    (r"mamba_expand", 2),
    (r"(max|n)_positions?|\w*max_position_embeddings|max_(source|target)_positions", 128),
    (r"max_seq_len|max_sequence_length|max_seq_length|seq_length", 128),
    (r"sliding_window|sliding_window_size|local_attention|attention_chunk_size", 8),
    (r"attention_window|attention_window_size|block_size|chunk_size", 8),
    (r"local_radius|left_context|right_context", 3),
    (r"image_size|crop_size", 16),
    (r"patch_size", 4),
    (r"num_mel_bins|feature_projection_input_dim|input_feat_per_channel|feature_size", 16),
    (r"type_vocab_size", 2),
    (r"rotary_dim", 4),
    (r"use_mamba_kernels|apply_spec_augment|use_timm_backbone", False),
)
_PATTERNS: Final = tuple((re.compile(pattern), size) for pattern, size in SIZES)

# Other sizes that a config may need, tried in this order until eager runs.
VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"num_key_value_heads": 4},
    {"hidden_size": 256, "head_dim": 64},
    {"num_key_value_heads": 4, "head_dim": 8},
    {"head_dim": None},
    {"num_key_value_heads": 4, "head_dim": 16},
    {"layer_types": ["linear_attention", "full_attention"]},
    {"layer_types": ["mamba", "attention"]},
    {"layer_types": ["conv", "full_attention"]},
    {"num_hidden_layers": 4},
    {"hidden_size": 64, "intermediate_size": 96},
    {"hidden_size": 512, "head_dim": 128},
    {"attention_type": "original_full"},
)

# What a family needs beyond these.
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "minimax_m3_vl": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_n_heads": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
}


def tiny_config(family: str, variant: dict[str, Any] | None = None) -> Any:
    """A config of a family with tiny sizes."""
    return _shrink(CONFIG_MAPPING[family], {**(variant or {}), **FAMILIES.get(family, {})})


def _shrink(config_class: Any, other: dict[str, Any], default: Any = None) -> Any:
    """A config of a class with the sizes of `SIZES`, and with other ones where it has them."""
    default = config_class() if default is None else default
    known = {k: v for k, v in vars(default).items() if not k.startswith("_")}
    sizes: dict[str, Any] = {}
    for name, value in known.items():
        if name in config_class.sub_configs:
            if value is not None:
                sizes[name] = _shrink(type(value), other, value)
            continue
        size = _size(name, value)
        if size is not value:
            sizes[name] = size
    sizes |= {name: value for name, value in other.items() if name in known}
    if isinstance(known.get("layer_types"), list) and "layer_types" not in other:
        sizes["layer_types"] = _two_layers(known["layer_types"])
    return config_class(**sizes)


def _size(name: str, value: Any) -> Any:
    """The size of an attribute of a config; the value itself if it stays."""
    if isinstance(value, (str, dict)):
        return value
    for pattern, size in _PATTERNS:
        if pattern.fullmatch(name):
            if isinstance(size, bool) is not isinstance(value, bool) and value is not None:
                return value
            if isinstance(size, float) and isinstance(value, int):
                return int(size)
            if isinstance(size, int) and isinstance(value, float):
                return value
            if value is None and isinstance(size, int) and "token_id" not in name:
                return value
            if isinstance(value, (list, tuple)) and size is not None:
                return value if name.endswith("_layers") else type(value)([size] * len(value))
            return size
    return value


def _two_layers(kinds: list[str]) -> list[str]:
    """Layer types for two layers: both kinds if there are two."""
    different = list(dict.fromkeys(kinds))
    return (different * 2)[:2]


# ── models and inputs ─────────────────────────────────────────────────────────────────────────


def model_classes(family: str) -> list[Any]:
    """The classes of a family's models, beginning with those that generate."""
    registered = [getattr(modeling_auto, head, {}).get(family) for head in HEADS]
    names = [n for name in registered if name for n in ([name] if isinstance(name, str) else name)]
    found = [getattr(transformers, name, None) for name in dict.fromkeys(names)]
    return [x for x in found if x is not None] or _unregistered(CONFIG_MAPPING[family])


def modeling_module(config_class: Any) -> Any:
    """The module with the models of a config class; None if there is none."""
    name = config_class.__module__.replace("configuration_", "modeling_")
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _unregistered(config_class: Any) -> list[Any]:
    """The models of a config that is a part of another one."""
    module = modeling_module(config_class)
    models = [x for x in vars(module).values() if isinstance(x, type)] if module else []
    return [
        model
        for model in models
        if issubclass(model, PreTrainedModel)
        and model.config_class is config_class
        and "forward" in vars(model)
        and not model.__name__.endswith("PreTrainedModel")
    ]


def _known(family: str) -> list[Any]:
    """The family's models with sizes that other tests use."""
    tables = [*ARCHITECTURES.values(), *MORE.values(), *(x.sized for x in FLOATS.values()), *ALL]
    return [x for x in tables if getattr(transformers, x.config).model_type == family]


def build(family: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model of a family and its inputs, of the first config with which eager runs."""
    problem: Exception | None = None
    problems: list[str] = []
    for make in _candidates(family):
        if make.func is build_variant and _is_hopeless(problems):
            continue
        try:
            model = make()
            given = inputs(model)
            with torch.no_grad():
                model(**given)
        except Exception as error:
            problem = problem or error
            problems.append(f"{type(error).__name__}: {error}")
            continue
        return model, given
    if problem is None:
        raise NotRun("it has no model class")
    raise NotRun(f"no tiny config: {type(problem).__name__}: {_short(problem)}")


def _is_hopeless(problems: list[str]) -> bool:
    """Whether other sizes do not change the error."""
    return len(problems) > 2 and len(set(problems[-3:])) == 1


def _candidates(family: str) -> Iterator[partial[Any]]:
    classes = model_classes(family)
    for variant in VARIANTS:
        for model_class in classes:
            yield partial(build_variant, family, model_class, variant)
    for known in _known(family):
        yield partial(known.build, "eager")


def build_variant(family: str, model_class: Any, variant: dict[str, Any]) -> Any:
    """A model of a family with a tiny config and random weights."""
    config = tiny_config(family, variant)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        parameters = sum(x.numel() for x in model_class(config).parameters())
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters")
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(WEIGHT_SCALE)
    return model


def inputs(model: Any) -> dict[str, torch.Tensor]:
    """Random inputs of a model, by the name of its main input."""
    torch.manual_seed(7)
    name, config = model.main_input_name, model.config
    parameters = inspect.signature(model.forward).parameters
    tokens = torch.randint(3, 90, (BATCH, LENGTH))
    if "grid_thw" in parameters:
        given = _patches(config, next(iter(parameters)))
    elif "query_embeds" in parameters:
        given = {"query_embeds": torch.randn(BATCH, 5, config.hidden_size)}
        given["encoder_hidden_states"] = torch.randn(BATCH, 9, config.encoder_hidden_size)
    elif name not in parameters and "hidden_states" in parameters:
        given = {"hidden_states": torch.randn(BATCH, LENGTH, config.hidden_size)}
    elif name == "input_ids":
        given = {name: tokens}
    elif name in ("pixel_values", "pixel_values_images"):
        given = {name: _pixels(config)}
    elif name == "input_features":
        bins = _first(config, ("num_mel_bins", "feature_size", "input_feat_per_channel"), 16)
        given = {name: torch.randn(BATCH, bins, 64)}
        if not config.is_encoder_decoder:
            given = {name: given[name].transpose(1, 2)}
    elif name == "input_values":
        given = {name: torch.randn(BATCH, 2000)}
    else:
        raise NotRun(f"its main input is {name}")
    if name == "input_ids" and "pixel_values" in parameters and not model.can_generate():
        given["pixel_values"] = _pixels(config)
    if getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens.flip(0)[:, :7]
    return given


def _patches(config: Any, name: str) -> dict[str, torch.Tensor]:
    """Two images as rows of patches, of 4 x 4 and of 2 x 4."""
    size = config.patch_size if isinstance(config.patch_size, int) else config.patch_size[0]
    channels = _first(config, ("in_channels", "num_channels", "in_chans"), 3)
    width = channels * getattr(config, "temporal_patch_size", 1) * size**2
    grid = torch.tensor([[1, 4, 4], [1, 2, 4]])
    return {name: torch.randn(24, width), "grid_thw": grid}


def _pixels(config: Any) -> torch.Tensor:
    vision = getattr(config, "vision_config", None) or config
    size = _first(vision, ("image_size", "img_size", "input_size"), 16)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(BATCH, _first(vision, ("num_channels", "in_channels"), 3), height, width)


def _first(config: Any, names: tuple[str, ...], default: Any) -> Any:
    return next((getattr(config, n) for n in names if getattr(config, n, None)), default)


def padding(model: Any) -> torch.Tensor:
    """The padding mask of the text inputs: on the left for decoders, else on the right."""
    keep = torch.ones(BATCH, LENGTH, dtype=torch.long)
    generates = model.can_generate() and not model.config.is_encoder_decoder
    keep[0, slice(None, 4) if generates else slice(-4, None)] = 0
    return keep


def own_attention() -> list[str]:
    """Families whose modules define attention layers, none of which uses the attention interface."""
    found = []
    for family in families():
        name = CONFIG_MAPPING[family].__module__.replace("configuration_", "modeling_")
        path = Path(*name.split(".")[1:]).with_suffix(".py")
        source = Path(transformers.__file__).parent / path
        text = source.read_text(encoding="utf-8") if source.exists() else ""
        if re.search(r"^class \w*Attention\w*\(", text, re.M) and INTERFACE not in text:
            found.append(family)
    return found


# ── checks ────────────────────────────────────────────────────────────────────────────────────


class Family:
    """A family's model, run with eager and with maskwright."""

    def __init__(self, family: str) -> None:
        self.name = family
        eager, self.inputs = build(family)
        self.models = {"eager": eager}
        self.calls = 0  # of the attention interface
        layer = AttentionInterface._global_mapping[NAME]

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return layer(*args, **kwargs)

        AttentionInterface._global_mapping[NAME] = counted

    def model(self, attention: str) -> Any:
        """The model with an attention implementation, loaded as a user would."""
        eager = self.models["eager"]
        if attention not in self.models:
            config = copy.deepcopy(eager.config)
            config._attn_implementation = attention
            loaded = type(eager)(config).eval()
            loaded.load_state_dict(eager.state_dict())
            self.models[attention] = loaded
        return self.models[attention]

    def run(self, attention: str, compute: Callable[[Any], Any]) -> Any:
        """What a function computes with an attention implementation."""
        model = self.model(attention)
        torch.manual_seed(3)
        np.random.seed(3)  # of the masked frames of speech models
        return compute(model)

    def check(self, name: str) -> Result:
        """The result of one check."""
        self.calls = 0
        try:
            compute, compare = getattr(self, name)()
            try:
                eager = self.run("eager", compute)
            except NotRun:
                raise
            except Exception as error:
                raise NotRun(f"eager: {type(error).__name__}: {_short(error)}") from error
            ours = self.run(NAME, compute)
            problem = compare(eager, ours)
            if problem and not name.startswith("generate"):
                problem = "" if self._is_rounding(name, eager, ours) else problem
        except NotRun as reason:
            return Result(self.name, name, "not run", str(reason))
        except MaskError as error:
            return Result(self.name, name, "refused", str(error))
        except Exception as error:
            return Result(self.name, name, "error", f"{type(error).__name__}: {_short(error)}")
        if problem and (self.name, name) in BY_DESIGN:
            return Result(self.name, name, "by design", BY_DESIGN[self.name, name])
        if problem:
            return Result(self.name, name, "different", problem)
        if self.calls:
            return Result(self.name, name, "equal")
        if not _has_attention(self.models["eager"]):
            return Result(self.name, name, "not run", "it has no attention")
        return Result(self.name, name, "not used")

    def _is_rounding(self, name: str, eager: Any, ours: Any) -> bool:
        """Whether eager in float64 is as far from eager as from maskwright: large sums that cancel."""
        theirs, results = dict(_tensors(eager)), dict(_tensors(ours))
        inputs, model = self.inputs, self.models["eager"].double()
        self.inputs = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
        try:
            exact = dict(_tensors(self.run("eager", getattr(self, name)()[0])))
        except RuntimeError:  # as of grouped products of experts, which PyTorch has in float32 only
            return False
        finally:
            self.inputs = inputs
            model.float()
        if not theirs.keys() == results.keys() == exact.keys():
            return False

        def error(x: torch.Tensor, key: str) -> float:
            return float((x.double() - exact[key].double()).abs().max()) if x.numel() else 0.0

        largest = max((float(x.abs().max()) for x in exact.values() if x.numel()), default=0.0)
        rounding = TOLERANCE * 1e-2 * largest
        return all(
            error(results[key], key) <= 4 * error(theirs[key], key) + rounding for key in exact
        )

    def forward(self) -> tuple[Any, Any]:
        """A forward without a mask."""
        return self._forward(self.inputs), compare_tensors

    def padded(self) -> tuple[Any, Any]:
        """A forward with a padding mask, compared at real tokens."""
        keep = self._padding()
        return self._forward({**self.inputs, "attention_mask": keep}), _compare_real(keep)

    def generate(self) -> tuple[Any, Any]:
        """Greedy generation, with the default cache."""
        return self._generate({}), _compare_steps

    def generate_padded(self) -> tuple[Any, Any]:
        """Greedy generation of a padded batch."""
        return self._generate({"attention_mask": self._padding()}), _compare_steps

    def _generate(self, other: dict[str, Any]) -> Any:
        if not self.models["eager"].can_generate():
            raise NotRun("it does not generate")
        given = {k: v for k, v in self.inputs.items() if not k.startswith("decoder")} | other
        options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
        options |= {"pad_token_id": 0, "return_dict_in_generate": True, "output_logits": True}
        options |= {"max_length": None, "min_length": None}

        @torch.no_grad()
        def compute(model: Any) -> Any:
            return model.generate(**given, **options)

        return compute

    def gradient(self) -> tuple[Any, Any]:
        """Gradients of all weights in training, without dropout."""
        given = dict(self.inputs)
        keep = None
        if "input_ids" in given:
            keep = given["attention_mask"] = self._padding()

        def compute(model: Any) -> dict[str, torch.Tensor]:
            _without_dropout(model).train()
            model.zero_grad()
            try:
                out = next(_tensors(model(**given)))[1]
                if keep is not None and out.shape[:2] == keep.shape:
                    out = out[keep.bool()]
                torch.manual_seed(5)
                (out * torch.randn_like(out)).sum().backward()
            finally:
                model.eval()
            weights = model.named_parameters()
            return {n: w.grad.clone() for n, w in weights if w.grad is not None}

        return compute, _compare_gradients

    def attentions(self) -> tuple[Any, Any]:
        """The attention weights of a padded forward, compared at real queries."""
        given = dict(self.inputs)
        keep = None
        if "input_ids" in given:
            keep = given["attention_mask"] = self._padding()

        @torch.no_grad()
        def compute(model: Any) -> Any:
            out = model(**given, output_attentions=True)
            return {k: v for k, v in out.items() if k.endswith("attentions") and v is not None}

        return compute, _compare_weights(keep)

    def _forward(self, given: dict[str, Any]) -> Any:
        @torch.no_grad()
        def compute(model: Any) -> Any:
            tensors = dict(_tensors(model(**given)))
            return {n: x for n, x in tensors.items() if "attentions" not in n}  # a check of its own

        return compute

    def _padding(self) -> torch.Tensor:
        if "input_ids" not in self.inputs:
            raise NotRun("its input is no text")
        return padding(self.models["eager"])


def _without_dropout(model: Any) -> Any:
    """The same model, for sizes of other tests, which keep dropout."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def _has_attention(model: Any) -> bool:
    """Whether a part of the model is called attention."""
    return any("attention" in type(part).__name__.lower() for part in model.modules())


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The floating tensors of an output, with their names; caches are skipped."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("past_key_values", "cache_params", "loss"):
                yield from _tensors(item, f"{name}.{key}".strip("."))
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}.{number}".strip("."))


def compare_tensors(eager: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> str:
    """What differs between two outputs; an empty string if nothing does."""
    if eager.keys() != ours.keys():
        return f"outputs {sorted(eager.keys() ^ ours.keys())[:4]} in one of both"
    for name, value in eager.items():
        problem = _difference(name, value, ours[name])
        if problem:
            return problem
    return ""


def _difference(name: str, eager: torch.Tensor, ours: torch.Tensor, floor: float = 0.0) -> str:
    if eager.shape != ours.shape:
        return f"{name}: shape {tuple(ours.shape)}, eager {tuple(eager.shape)}"
    eager, ours = eager.double(), ours.double()
    if not torch.equal(eager.isfinite(), ours.isfinite()):
        if not bool(eager.isfinite().all()):
            raise NotRun(f"eager: {name} is not finite")
        return f"{name}: not finite"
    eager, ours = eager.nan_to_num(0, 0, 0), ours.nan_to_num(0, 0, 0)
    if eager.numel() == 0:
        return ""
    scale = max(float(eager.abs().max()), floor)
    difference = float((eager - ours).abs().max())
    return f"{name}: {difference:.2g} of {scale:.2g}" if difference > TOLERANCE * scale else ""


def _compare_real(keep: torch.Tensor) -> Any:
    def real(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: x[keep.bool()] if x.shape[:2] == keep.shape else x for n, x in tensors.items()}

    return lambda eager, ours: compare_tensors(real(eager), real(ours))


def _compare_steps(eager: Any, ours: Any) -> str:
    first, second = eager["sequences"], ours["sequences"]
    new = len(eager["logits"])
    for step, (x, y) in enumerate(zip(eager["logits"], ours["logits"], strict=True)):
        problem = _difference(f"logits of step {step}", x, y)
        if problem:
            return problem
        position = first.shape[1] - new + step
        if not torch.equal(first[:, position], second[:, position]):
            return ""  # a tie: the next steps continue other texts
    return ""


def _compare_gradients(eager: dict[str, torch.Tensor], ours: dict[str, torch.Tensor]) -> str:
    if eager.keys() != ours.keys():
        return f"gradients of {sorted(eager.keys() ^ ours.keys())[:4]} in one of both"
    largest = (float(x.abs().max()) for x in eager.values() if x.numel())
    floor = 1e-2 * max(largest, default=0.0)
    for name, value in eager.items():
        problem = _difference(name, value, ours[name], floor)
        if problem:
            return problem
    return ""


def _compare_weights(keep: torch.Tensor | None) -> Any:
    def compare(eager: dict[str, Any], ours: dict[str, Any]) -> str:
        theirs = dict(_tensors(eager))
        if not theirs:
            raise NotRun("eager returns no attention weights")
        weights = dict(_tensors(ours))
        if theirs.keys() != weights.keys():
            return f"{len(weights)} maps, eager {len(theirs)}"
        for name, x in theirs.items():
            y = weights[name]
            if x.shape != y.shape:
                return f"{name}: shape {tuple(y.shape)}, eager {tuple(x.shape)}"
            real = x.shape[:1] + x.shape[2:3]
            if keep is not None and real == keep.shape:  # queries of padding see nothing
                rows = keep.bool()[:, None, :].expand(-1, x.shape[1], -1)
                x, y = x[rows], y[rows]
            problem = _difference(name, x, y)
            if problem:
                return problem
        return ""

    return compare


def _short(error: BaseException | None) -> str:
    return re.sub(r"\s+", " ", str(error))[:300]


# ── runner ────────────────────────────────────────────────────────────────────────────────────


def families() -> list[str]:
    """All model types of the installed transformers."""
    return sorted(CONFIG_MAPPING_NAMES)


def run_family(family: str) -> list[Result]:
    """The results of all checks of one family, in this process."""
    transformers.logging.set_verbosity(50)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register()
    try:
        model = Family(family)
    except NotRun as reason:
        return [Result(family, check, "not run", str(reason)) for check in CHECKS]
    except Exception as error:
        reason = f"no config: {type(error).__name__}: {_short(error)}"
        return [Result(family, check, "not run", reason) for check in CHECKS]
    return [model.check(check) for check in CHECKS]


def _send(family: str, pipe: Any) -> None:
    pipe.send(run_family(family))
    pipe.close()


def run_limited(family: str, seconds: float) -> list[Result]:
    """The results of one family in a process of its own, which ends after a time limit."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(family, sender))
    process.start()
    sender.close()
    reason = f"longer than {seconds:g} seconds"
    try:
        if receiver.poll(seconds):
            results: list[Result] = receiver.recv()
            return results
    except EOFError:
        reason = "the process ended"
    finally:
        if process.is_alive():
            process.kill()
        process.join()
    return [Result(family, check, "not run", reason) for check in CHECKS]


def unlisted(results: list[Result]) -> list[str]:
    """Families that maskwright refuses or that do not use it, and that `UNSUPPORTED_MODELS` lacks."""
    cannot = {
        result.family
        for result in results
        if result.result in ("refused", "not used") and result[:2] not in REFUSED_CALLS
    }
    return sorted(cannot - UNSUPPORTED_MODELS.keys())


def main() -> int:
    """Run the families of the command line, and write their results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("family", nargs="*", help="model types; all without any")
    parser.add_argument("--seconds", type=float, default=90.0, help="time limit per family")
    options = parser.parse_args()
    results: list[Result] = []
    for family in options.family or families():
        for result in run_limited(family, options.seconds):
            results.append(result)
            print(json.dumps(result._asdict()), flush=True)
    missing = unlisted(results)
    for family in missing:
        print(f"{family}: not in UNSUPPORTED_MODELS", file=sys.stderr)
    return int(bool(missing) or any(result.result in BUGS for result in results))


if __name__ == "__main__":
    sys.exit(main())
