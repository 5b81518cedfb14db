"""The architectures that the integrations are tested with, derived from `tiny_architectures`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from tests._helpers.tiny_architectures import ARCHITECTURES, LATENT, PAIR

VOCABULARY = 40
WINDOW = 5  # smaller than the sequences of the tests
WINDOW_SIZES = {"sliding_window": WINDOW, "attention_chunk_size": WINDOW}
SEQ2SEQ = {**PAIR, "vocab_size": VOCABULARY, "eos_token_id": 39, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Tiny:
    """An architecture of transformers with a small config."""

    name: str  # its model type
    model: str
    config: str
    sizes: dict[str, Any] = field(repr=False)
    kind: str = "decoder"  # or encoder, seq2seq, audio
    packs: bool = True  # detects packed documents by positions that restart
    scale: float = 4.0  # of the initial weights, which are too small to show a wrong mask

    def build(self, attention: str = "eager") -> Any:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        config._attn_implementation = attention
        model = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(self.scale)
        return model


def tiny(name: str, base: str | None = None, **options: Any) -> Tiny:
    """A model of `ARCHITECTURES` with the vocabulary and window of these tests."""
    known = ARCHITECTURES[base or name.replace("_", " ")]
    about = {key: options.pop(key) for key in ("kind", "packs", "scale") if key in options}
    sizes = {**known.sizes, "vocab_size": VOCABULARY, "eos_token_id": None, **options}
    sizes |= {key: size for key, size in WINDOW_SIZES.items() if key in known.sizes}
    return Tiny(name, known.model, known.config, sizes, **about)


DECODERS = (
    *map(tiny, ("llama", "mistral", "mixtral", "gemma3", "qwen2", "qwen3", "phi3", "granite")),
    *map(tiny, ("olmo2", "gpt_neox", "gpt2", "llama4")),
    tiny("gemma2", attn_logit_softcapping=2.0),
    tiny("opt", packs=False),
    tiny("gpt_oss", packs=False, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}),
)
WHISPER = {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64} | {
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
OTHERS = (
    tiny("bert", kind="encoder"),
    tiny("modernbert", kind="encoder", eos_token_id=2, local_attention=2 * WINDOW),
    tiny("bart", kind="seq2seq", eos_token_id=39, decoder_start_token_id=1),
    tiny("marian", kind="seq2seq", eos_token_id=39, decoder_start_token_id=1),
    tiny("t5", kind="seq2seq", eos_token_id=39, scale=1.0),
    Tiny("whisper", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, kind="audio"),
)
ALL = (*DECODERS, *OTHERS)

# Models without support for other attention functions, by their model type.
DEEPSEEK = {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
NO_OTHER = (
    *map(tiny, ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt")),
    tiny("deberta-v2", "deberta v2", kind="encoder"),
    Tiny("deepseek_v32", "DeepseekV32ForCausalLM", "DeepseekV32Config", DEEPSEEK),
    tiny("xlnet", kind="encoder"),
)
