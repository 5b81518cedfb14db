from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig

TINY = BertConfig(vocab_size=31, block_size=16, n_layer=2, n_head=3, n_embd=24)


def test_every_token_attends_to_all_real_tokens() -> None:
    torch.manual_seed(0)
    ids = torch.randint(31, (2, 12))
    report = mw.audit(Bert(TINY), ids, expects="bidirectional", probes=["leak", "reach", "batch"])
    report.assert_ok()


def test_padding_does_not_change_real_tokens() -> None:
    torch.manual_seed(0)
    model = Bert(TINY).double().eval()
    ids = torch.randint(31, (1, 7))
    padded = torch.cat([ids, torch.randint(31, (1, 5))], dim=1)
    padding = mw.padding(lengths=[7])
    torch.testing.assert_close(model(padded, padding)[:, :7], model(ids))
    torch.testing.assert_close(model.pooled(padded, padding), model.pooled(ids))
    assert not torch.allclose(model(padded)[:, :7], model(ids))


def test_more_tokens_than_block_size_raise() -> None:
    with pytest.raises(mw.ArgumentError, match="17 tokens, but block_size is 16"):
        Bert(TINY)(torch.zeros(1, 17, dtype=torch.long))
