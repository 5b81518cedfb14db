"""Model types of transformers that cannot run on another attention implementation, and why.

The tests compare the list with the modules of all model types of the installed release, and the sweep
(`python -m tests.integrations.sweep`) with models that run.
"""

from __future__ import annotations

from typing import Final

from maskwright.errors import Unsupported

_OWN_ATTENTION: Final = "computes its own attention and does not use the attention interface"
_ADDITIVE_MASK: Final = "adds a float mask to the scores, whatever attn_implementation is"
_OWN_TABLE: Final = "selects its attention from its own table, which has no entry for it"
_SELECTS_KEYS: Final = (
    "selects keys in every layer, and passes them as indices to other implementations"
)
_SELECTS_BLOCKS: Final = (
    "selects blocks of keys in its layers, and passes them as indices to other implementations"
)

# Model types that cannot run on another attention, and why. A part of a model has a type of its own.
UNSUPPORTED_MODELS: Final[dict[str, str]] = {
    # BEGIN
    **dict.fromkeys(("bloom", "codegen", "mpt"), _ADDITIVE_MASK),
    **dict.fromkeys(("deberta-v2", "xlnet"), _OWN_ATTENTION),
    **dict.fromkeys(("falcon", "gpt_neo", "gptj"), _OWN_TABLE),
    "deepseek_v32": _SELECTS_KEYS,
    "hy_v4": _SELECTS_KEYS,
    # END
    "bridgetower": "marks layers of its images as causal, but only eager attends to all keys",
    "deepseek_v4": "appends the bias of compressed keys to its mask as numbers",
}


def unsupported_model(model_type: str) -> Unsupported:
    """The error for a model type of `UNSUPPORTED_MODELS`.

    >>> unsupported_model("bloom")
    Unsupported('attn_implementation="maskwright": bloom adds a float mask to the scores, whatever \
attn_implementation is. Load the model with attn_implementation="eager".')
    """
    reason = UNSUPPORTED_MODELS.get(model_type, _OWN_TABLE)
    return Unsupported(
        f'attn_implementation="maskwright": {model_type} {reason}. '
        'Load the model with attn_implementation="eager".'
    )
