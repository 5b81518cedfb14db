"""What a step would take: sums that can be checked by hand."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.parallel.balance import balance
from maskwright.parallel.predict import predict, read_amount


def test_everything_by_hand() -> None:
    shards = balance(mw.everything().on(8), 2, how="contiguous", key_bytes=10)
    found = predict(shards, link=5.0, flops=100.0, head_dim=2)
    assert found.computing == pytest.approx(3.5 * 4 * 2 * 32 / 100)  # 32 cells a rank
    assert found.moving == pytest.approx(3 * 4 * 10 / 5)  # four keys in, their gradients out
    assert found.hidden == max(found.computing, found.moving)
    assert found.bare == found.computing + found.moving
    assert found.ideal == found.computing
    assert "assumed: 100 flops" in str(found)


def test_the_busiest_rank_counts() -> None:
    uneven = balance(mw.causal().on(64), 4, how="contiguous")
    found = predict(uneven, link=1e9, flops=1e9)
    assert found.computing / found.ideal == pytest.approx(uneven.balance)


@pytest.mark.parametrize(
    ("text", "amount"), [("50GB/s", 50e9), ("400T", 400e12), ("1.5 k", 1500.0), ("7", 7.0)]
)
def test_amounts(text: str, amount: float) -> None:
    assert read_amount(text, "--link") == amount


@pytest.mark.parametrize("text", ["", "fast", "1.2.3G", "-4G"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(mw.MaskError, match=r"--link .* is no amount"):
        read_amount(text, "--link")


def test_no_speed_is_refused() -> None:
    with pytest.raises(mw.MaskError, match="link=0 is no speed"):
        predict(balance(mw.causal().on(4), 2), link=0, flops=1)
