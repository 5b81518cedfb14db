"""An encoder-decoder Transformer with three masks, and a pointer that copies source tokens.

The encoder attends to all source tokens but padding, the decoder to its past, and the
cross-attention to all source tokens but padding. The caller passes the padding of the source. The
padding of the target is not needed in training: it comes after the end, where the causal mask
masks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from maskwright.core.atoms import causal, everything
from maskwright.core.atoms import padding as padding_mask
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError
from maskwright.models.attention import CrossKVCache
from maskwright.models.sampling import SamplingParams, sample
from maskwright.models.transformer import CrossBlock, Transformer, init_weights, tied_lm_head

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Sizes and special tokens of a Seq2Seq.

    Args:
        src_vocab_size: Number of source tokens.
        tgt_vocab_size: Number of target tokens.
        block_size: Maximum length of source and target.
        n_layer: Number of blocks in the encoder, and in the decoder.
        n_head: Number of attention heads; must divide `n_embd`.
        n_embd: Size of the embeddings.
        dropout: Dropout probability.
        pad_token_id: Fills up a target that has ended.
        bos_token_id: First token of the targets.
        eos_token_id: Last token of the targets.
        use_pointer: Whether source tokens can be copied; source and target then share their
            vocabulary.

    >>> from maskwright.models.seq2seq import Seq2SeqConfig
    >>> config = Seq2SeqConfig(src_vocab_size=40, tgt_vocab_size=50, n_embd=32)
    >>> config.pad_token_id, config.bos_token_id, config.eos_token_id
    (0, 1, 2)
    """

    src_vocab_size: int
    tgt_vocab_size: int
    block_size: int = 128
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    use_pointer: bool = False


class Pointer(nn.Module):
    """Pointer-generator: mixes the vocabulary distribution with one over the source tokens.

    The distribution over the source tokens is the softmax of one more attention over the memory.
    A gate, per target position, gives the probability of copying.

    >>> import torch
    >>> from maskwright.models.seq2seq import Pointer
    >>> src, keep = torch.tensor([[7, 8, 9]]), torch.tensor([[True, True, False]])
    >>> x, memory, logits = torch.randn(1, 4, 16), torch.randn(1, 3, 16), torch.randn(1, 4, 30)
    >>> log_probs = Pointer(n_embd=16)(x, memory, src, keep, logits)
    >>> log_probs.shape, bool(log_probs.exp().sum(-1).isclose(torch.tensor(1.0)).all())
    (torch.Size([1, 4, 30]), True)
    """

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)
        self.gate = nn.Linear(n_embd, 1)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor,
        src: torch.Tensor,
        keep: torch.Tensor,
        logits: torch.Tensor,
    ) -> torch.Tensor:
        """Log-probabilities of the next token.

        Args:
            x: Output of the decoder, (B, T, C).
            memory: Output of the encoder, (B, S, C).
            src: Source tokens, (B, S).
            keep: True for real source tokens, False for padding, (B, S).
            logits: Logits over the vocabulary, (B, T, vocab_size).

        Returns:
            (B, T, vocab_size).
        """
        scores = self.q_proj(x) @ self.k_proj(memory).transpose(-2, -1) / math.sqrt(x.shape[-1])
        weights, _ = masked_softmax(scores, keep[:, None])  # (B, T, S)
        index = src[:, None].expand_as(weights)  # (B, T, S)
        copied = torch.zeros_like(logits).scatter_add(-1, index, weights)  # (B, T, vocab_size)
        gate = self.gate(x)  # (B, T, 1)
        tiny = torch.finfo(logits.dtype).tiny
        return torch.logaddexp(
            logsigmoid(gate) + copied.clamp(min=tiny).log(),
            logsigmoid(-gate) + logits.log_softmax(-1),
        )


class Seq2Seq(nn.Module):
    """An encoder-decoder Transformer.

    Args:
        config: Sizes and special tokens.
        mask: Mask of the decoder's self-attention; causal by default.

    Raises:
        ArgumentError: `use_pointer` with two vocabularies.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(50, 60, n_layer=1, n_head=2, n_embd=32))
    >>> src, tgt = torch.randint(3, 50, (2, 7)), torch.randint(3, 60, (2, 5))
    >>> model(src, tgt, mw.padding(lengths=[4, 7])).shape
    torch.Size([2, 5, 60])
    >>> memory = model.encode(src)
    >>> memory.shape, model.decode(tgt, memory).shape, len(model.new_kv_caches())
    (torch.Size([2, 7, 32]), torch.Size([2, 5, 60]), 1)
    >>> len(model.generate(src, max_new_tokens=4)), len(model.beam_search(src, max_new_tokens=4))
    (2, 2)
    """

    def __init__(self, config: Seq2SeqConfig, mask: Mask | None = None) -> None:
        super().__init__()
        if config.use_pointer and config.src_vocab_size != config.tgt_vocab_size:
            raise ArgumentError(
                f"use_pointer=True with src_vocab_size={config.src_vocab_size} and "
                f"tgt_vocab_size={config.tgt_vocab_size}: copying needs one shared vocabulary. "
                "Pass equal sizes, or use_pointer=False."
            )
        self.config, self.mask = config, causal() if mask is None else mask
        self.encoder = Transformer(config.src_vocab_size, config)
        self.decoder = Transformer(config.tgt_vocab_size, config, CrossBlock)
        self.lm_head = tied_lm_head(self.decoder.token_embedding)
        self.pointer = Pointer(config.n_embd) if config.use_pointer else None
        init_weights(self)

    def forward(
        self,
        src: torch.Tensor,
        tgt: torch.Tensor,
        src_padding: Mask | None = None,
        tgt_padding: Mask | None = None,
    ) -> torch.Tensor:
        """Logits of the next target token: (B, S), (B, T) → (B, T, tgt_vocab_size)."""
        memory = self.encode(src, src_padding)
        return self.decode(tgt, memory, src_padding, tgt_padding, src=src)

    def encode(self, src: torch.Tensor, src_padding: Mask | None = None) -> torch.Tensor:
        """The memory, one embedding per source token: (B, S) → (B, S, C)."""
        return self.encoder.hidden_states(src, everything() if src_padding is None else src_padding)

    def decode(
        self,
        tgt: torch.Tensor,
        memory: torch.Tensor,
        src_padding: Mask | None = None,
        tgt_padding: Mask | None = None,
        kv_caches: list[CrossKVCache] | None = None,
        *,
        src: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of the next target token.

        Args:
            tgt: Target tokens, (B, T). With `kv_caches`, they follow the tokens in the caches.
            memory: Output of `encode`, (B, S, C).
            src_padding: Mask of the real source tokens.
            tgt_padding: Mask of the real target tokens, combined with the model's mask by `&`.
            kv_caches: The caches of `new_kv_caches()`, updated in place.
            src: Source tokens, (B, S), for a model with a pointer.

        Returns:
            (B, T, tgt_vocab_size); log-probabilities with a pointer.
        """
        mask = self.mask if tgt_padding is None else self.mask & tgt_padding
        memory_mask = everything() if src_padding is None else src_padding
        x = self.decoder.hidden_states(tgt, mask, memory, memory_mask, kv_caches=kv_caches)
        logits: torch.Tensor = self.lm_head(x)  # (B, T, tgt_vocab_size)
        if self.pointer is not None and src is not None:
            logits = self.pointer(x, memory, src, _keep(src_padding, src), logits)
        return logits

    def new_kv_caches(self) -> list[CrossKVCache]:
        """An empty KV cache for every layer of the decoder."""
        return [CrossKVCache() for _ in self.decoder.blocks]

    @torch.no_grad()
    def generate(
        self,
        src: torch.Tensor,
        max_new_tokens: int = 64,
        *,
        src_padding: Mask | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Generates a target for every source; greedy unless a temperature is given.

        Args:
            src: Source tokens, (B, S).
            max_new_tokens: Maximum length of the targets; at most `block_size` are generated.
            src_padding: Mask of the real source tokens.
            temperature: Divides the logits; 0 chooses the most likely token.
            top_k: Sample from the `top_k` most likely tokens only.
            top_p: Sample from the fewest tokens whose probabilities add up to `top_p` only.
            seed: Seed of the random numbers.

        Returns:
            The targets without `bos_token_id`, (B, up to max_new_tokens), filled up with
            `pad_token_id` after `eos_token_id`.
        """
        config, B = self.config, src.shape[0]
        params = SamplingParams(temperature, top_k, top_p, seed)
        generator = params.generator(src.device)
        memory, kv_caches = self.encode(src, src_padding), self.new_kv_caches()
        ids = src.new_full((B, 1), config.bos_token_id)
        done = torch.zeros(B, dtype=torch.bool, device=src.device)
        for _ in range(min(max_new_tokens, config.block_size)):
            last = ids[:, -1:]  # (B, 1)
            logits = self.decode(last, memory, src_padding, kv_caches=kv_caches, src=src)[:, -1]
            new = sample(logits, params, generator).masked_fill(done, config.pad_token_id)  # (B,)
            ids = torch.cat([ids, new[:, None]], dim=1)
            done |= new == config.eos_token_id
            if bool(done.all()):
                break
        return ids[:, 1:]

    @torch.no_grad()
    def beam_search(
        self,
        src: torch.Tensor,
        max_new_tokens: int = 64,
        *,
        src_padding: Mask | None = None,
        num_beams: int = 4,
        length_penalty: float = 1.0,
    ) -> torch.Tensor:
        """Generates a target for every source by beam search.

        Args:
            src: Source tokens, (B, S).
            max_new_tokens: Maximum length of the targets; at most `block_size` are generated.
            src_padding: Mask of the real source tokens.
            num_beams: Beam width.
            length_penalty: A target is scored by its log-probability divided by its length to
                this power.

        Returns:
            As `generate`.

        Raises:
            ArgumentError: `num_beams` is less than 1.
        """
        if num_beams < 1:
            raise ArgumentError(f"num_beams={num_beams}: expected 1 or more.")
        config, B = self.config, src.shape[0]
        memory = self.encode(src, src_padding).repeat_interleave(num_beams, 0)  # (B · beams, S, C)
        if src_padding is not None:
            keep = _keep(src_padding, src).repeat_interleave(num_beams, 0)  # (B · beams, S)
            src_padding = padding_mask(keep=keep.cpu().numpy())
        src, kv_caches = src.repeat_interleave(num_beams, 0), self.new_kv_caches()
        ids = src.new_full((B * num_beams, 1), config.bos_token_id)
        first_beam = num_beams * torch.arange(B, device=src.device)  # (B,)
        score = memory.new_full((B, num_beams), -torch.inf)
        score[:, 0] = 0.0  # at first all beams are equal
        length = torch.zeros_like(score)
        done = torch.zeros_like(score, dtype=torch.bool)
        for _ in range(min(max_new_tokens, config.block_size)):
            last = ids[:, -1:]  # (B · beams, 1)
            logits = self.decode(last, memory, src_padding, kv_caches=kv_caches, src=src)[:, -1]
            log_probs = logits.log_softmax(-1).unflatten(0, (B, num_beams))  # (B, beams, vocab)
            log_probs = log_probs.masked_fill(done[..., None], -torch.inf)
            log_probs[..., config.pad_token_id].masked_fill_(done, 0.0)
            total = score[..., None] + log_probs  # (B, beams, vocab)
            new_length = (length + ~done)[..., None]  # (B, beams, 1)
            ranked = (total / new_length.clamp(min=1) ** length_penalty).flatten(1)
            best = ranked.topk(num_beams, dim=-1).indices  # (B, beams)
            beam, token = best // total.shape[-1], best % total.shape[-1]  # (B, beams) each
            score = total.flatten(1).gather(1, best)
            length = new_length[..., 0].gather(1, beam)
            done = done.gather(1, beam) | (token == config.eos_token_id)
            rows = (first_beam[:, None] + beam).flatten()  # (B · beams,)
            for cache in kv_caches:  # not of cross-attention: all beams have the same memory
                cache.reorder(rows)
            ids = torch.cat([ids[rows], token.flatten()[:, None]], dim=1)
            if bool(done.all()):
                break
        winner = (score / length.clamp(min=1) ** length_penalty).argmax(-1)  # (B,)
        return ids[first_beam + winner, 1:]


def _keep(padding: Mask | None, src: torch.Tensor) -> torch.Tensor:
    """True for the real source tokens: (B, S)."""
    if padding is None:
        return torch.ones_like(src, dtype=torch.bool)
    B, S = src.shape
    keep = padding.on(1, S, batch=B).dense()[:, 0, 0]  # (B or 1, S)
    return torch.from_numpy(keep).to(src.device).expand(B, S)
