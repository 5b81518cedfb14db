from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig

TINY = BertConfig(vocabulary=31, context=16, width=24, heads=3, layers=2)


def test_it_sees_both_ways_and_no_padding() -> None:
    torch.manual_seed(0)
    ids = torch.randint(31, (2, 12))
    report = mw.audit(Bert(TINY), ids, expects="bidirectional", probes=["leak", "reach", "batch"])
    report.assert_ok()


def test_padding_changes_nothing_for_real_tokens() -> None:
    torch.manual_seed(0)
    bert = Bert(TINY).double().eval()
    ids = torch.randint(31, (1, 7))
    padded = torch.cat([ids, torch.randint(31, (1, 5))], dim=1)
    mask = mw.padding(lengths=[7])
    torch.testing.assert_close(bert(padded, mask)[:, :7], bert(ids))
    torch.testing.assert_close(bert.pooled(padded, mask), bert.pooled(ids))
    assert not torch.allclose(bert(padded)[:, :7], bert(ids))


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(mw.ArgumentError, match="17 tokens but the context is 16"):
        Bert(TINY)(torch.zeros(1, 17, dtype=torch.long))
