"""maskwright in place of "sdpa" of transformers: its attention and its masks."""

from __future__ import annotations

from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from maskwright.integrations.transformers import NAME, register

register()
for interface in (AttentionInterface, AttentionMaskInterface):
    interface._global_mapping["sdpa"] = interface._global_mapping[NAME]
