"""PyTorch's operator samples of `scaled_dot_product_attention` under masks of maskwright."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests._helpers.sdpa_samples import CHECKS, DTYPES, samples

if TYPE_CHECKING:
    import torch

SLOW = {"compiled"}  # one graph per shape, so repeated samples add nothing


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_operator_samples(name: str, dtype: torch.dtype) -> None:
    count = 0
    for sample in samples(dtype, repeated=name not in SLOW):
        CHECKS[name](sample)
        count += 1
    assert count >= 13
