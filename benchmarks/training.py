"""A training step of the GPT of `maskwright.models`: on `maskwright.attention`, and on SDPA.

Both have the same weights and see the same tokens; only the line that computes attention differs.
SDPA is called as one would by hand: with `is_causal`, or with a dense mask for a window.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import maskwright as mw
from benchmarks.attention import Pace, Runner, difference, race
from benchmarks.figures import OURS, clock, times
from benchmarks.measure import machine, save, table
from maskwright.models.attention import MultiHeadAttention
from maskwright.models.gpt import GPT, GPTConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEADS, LAYERS, VOCABULARY = 256, 4, 4, 256
CELLS = (  # batch, tokens, mask
    (32, 128, "causal()"),
    (8, 512, "causal()"),
    (2, 2_048, "causal()"),
    (2, 2_048, "window(back=127)"),
)
TOLERANCE = 1e-3


class SdpaAttention(MultiHeadAttention):
    """The same layer, as it is written by who has SDPA only."""

    def forward(self, x: torch.Tensor, mask: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
        """`mask` is "causal" or a dense mask."""
        q, k, v = (self._split_heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        given = {"is_causal": True} if isinstance(mask, str) else {"attn_mask": mask}
        found = scaled_dot_product_attention(q, k, v, **given)
        projected: torch.Tensor = self.out_proj(found.transpose(1, 2).flatten(2))
        return projected


class SdpaGPT(GPT):
    """The same model with SDPA in its layers."""

    def __init__(self, config: GPTConfig, mask: mw.Mask) -> None:
        super().__init__(config, mask)
        for block in self.blocks:
            block.attn.__class__ = SdpaAttention
        dense = torch.from_numpy(mask.on(config.block_size).dense())
        self.given: Any = "causal" if mask == mw.causal() else dense

    def forward(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """As the GPT does, with one mask for all layers."""
        positions = torch.arange(ids.shape[1])
        x = self.token_embedding(ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x, self.given)
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits


def measure(
    batch: int, tokens: int, mask: str, pace: Pace | None = None, width: int = WIDTH
) -> dict[str, Any]:
    """The best seconds of one step of each, once their gradients are seen to be the same."""
    config = GPTConfig(VOCABULARY, block_size=tokens, n_embd=width, n_head=HEADS, n_layer=LAYERS)
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (batch, tokens + 1), generator=source)

    def runner(name: str, kind: type[GPT]) -> Runner:
        torch.manual_seed(0)
        model = kind(config, mw.parse(mask))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # so that no step changes them

        def step() -> tuple[torch.Tensor, ...]:
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            first = model.blocks[0].attn.q_proj.weight.grad
            return loss.detach(), first.detach().clone()

        return Runner(name, step, prepares=True)

    runners = [runner(OURS, GPT), runner("sdpa", SdpaGPT)]
    outputs, failed = race(runners, pace or Pace(least=5, behind=10.0))
    if failed:
        raise RuntimeError(f"training: {failed}")
    gap = difference(outputs[OURS], outputs["sdpa"])
    if gap > TOLERANCE:
        raise RuntimeError(f"training: the gradients differ by {gap}")
    seconds = {runner.name: runner.best for runner in runners}
    return {
        "batch": batch,
        "tokens": tokens,
        "mask": mask,
        "seconds": seconds,
        "tokens_per_second": {name: batch * tokens / took for name, took in seconds.items()},
        "ratio": seconds["sdpa"] / seconds[OURS],
        "rounds": {runner.name: runner.rounds for runner in runners},
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks training", description=__doc__)
    parser.parse_args(given)
    cells = [measure(*cell) for cell in CELLS]
    size = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "vocabulary": VOCABULARY}
    print(f"\n{machine()}\n")
    head = ["batch × tokens", "mask", "time per step", "tokens/s", "tokens/s with sdpa", "ratio"]
    rows = [
        [
            f"{cell['batch']} × {cell['tokens']:,}",
            cell["mask"],
            clock(cell["seconds"][OURS]),
            *(f"{cell['tokens_per_second'][name]:,.0f}" for name in (OURS, "sdpa")),
            times(cell["ratio"]),
        ]
        for cell in cells
    ]
    print(table(head, rows))
    print(f"\nwritten to {save('training', {'size': size, 'cells': cells})}")
    return 0
