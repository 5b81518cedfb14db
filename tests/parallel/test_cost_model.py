"""The predicted time of attention: sums that can be checked by hand."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.parallel.cost_model import parse_quantity, predict
from maskwright.parallel.layout import balance


def test_all_times() -> None:
    layout = balance(mw.everything().on(8), 2, strategy="contiguous", key_bytes=10)
    found = predict(layout, link=5.0, flops=100.0, head_dim=2)
    assert found.compute == pytest.approx(3.5 * 4 * 2 * 32 / 100)  # 32 cells per rank
    assert found.communication == pytest.approx(3 * 4 * 10 / 5)  # four keys in, gradients out
    assert found.overlapped == max(found.compute, found.communication)
    assert found.sequential == found.compute + found.communication
    assert found.ideal == found.compute
    assert "100 flops/s" in str(found)


def test_the_slowest_rank_counts() -> None:
    layout = balance(mw.causal().on(64), 4, strategy="contiguous")
    found = predict(layout, link=1e9, flops=1e9)
    assert found.compute / found.ideal == pytest.approx(layout.cost_imbalance)


@pytest.mark.parametrize(
    ("text", "amount"), [("50GB/s", 50e9), ("400T", 400e12), ("1.5 k", 1500.0), ("7", 7.0)]
)
def test_quantities(text: str, amount: float) -> None:
    assert parse_quantity(text, "--link") == amount


@pytest.mark.parametrize("text", ["", "fast", "1.2.3G", "-4G"])
def test_invalid_quantities(text: str) -> None:
    with pytest.raises(mw.MaskError, match="--link"):
        parse_quantity(text, "--link")


def test_a_speed_of_0_is_refused() -> None:
    with pytest.raises(mw.MaskError, match="link=0"):
        predict(balance(mw.causal().on(4), 2), link=0, flops=1)
