from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.models.sampling import Sampling, sample

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


def drawn(how: Sampling) -> set[int]:
    generator = torch.Generator().manual_seed(0)
    return {int(sample(LOGITS, how, generator)) for _ in range(300)}


def test_all_are_drawn_or_only_the_likeliest() -> None:
    assert drawn(Sampling()) == {0, 1, 2, 3}
    assert drawn(Sampling(temperature=0)) == {0}
    assert drawn(Sampling(top_k=2)) == {0, 1}
    assert drawn(Sampling(top_p=0.5)) == {0}
    assert drawn(Sampling(top_p=0.51)) == {0, 1}
    assert drawn(Sampling(top_p=0.9)) == {0, 1, 2}
    assert drawn(Sampling(top_k=99, top_p=1.0)) == {0, 1, 2, 3}


def test_a_low_temperature_sharpens() -> None:
    generator = torch.Generator().manual_seed(0)
    cold = [int(sample(LOGITS, Sampling(temperature=0.2), generator)) for _ in range(200)]
    assert cold.count(0) > 170


@pytest.mark.parametrize(
    ("given", "says"),
    [({"temperature": -1}, "negative"), ({"top_k": 0}, "1 or more"), ({"top_p": 1.5}, "no share")],
)
def test_what_makes_no_sense_is_refused(given: dict[str, float], says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        Sampling(**given)  # type: ignore[arg-type]
