"""Recipes compared with the rules of their papers, written as predicates on positions."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright import recipes

N = 24
IDS = np.array([[5, 6, 7, 8, 9, 3] * 4, [4] * 20 + [0] * 4])
IMAGES = np.array([-1, 0, 0, 0, -1, -1, 1, 1] * 3)
DOCUMENTS = [0] * 5 + [1] * 9 + [2] * 10


def pixel(position: int) -> tuple[int, int]:
    return divmod(position, 6)  # 4 × 6


def natten_start(position: int, size: int) -> int:
    return min(max(position - 1, 0), size - 3)


def natten(q: int, k: int) -> bool:
    (y, x), (key_y, key_x) = pixel(q), pixel(k)
    top, left = natten_start(y, 4), natten_start(x, 6)
    return top <= key_y < top + 3 and left <= key_x < left + 3


def block_diffusion(q: int, k: int) -> bool:
    half, size = N // 2, 3
    q_block, k_block = q % half // size, k % half // size
    if q < half:  # noised
        return k_block == q_block if k < half else k_block < q_block
    return k >= half and k_block <= q_block


RULES = {
    "prefix_lm": (recipes.prefix_lm(7), lambda q, k: k <= q or k < 7),
    "sliding": (recipes.sliding(5), lambda q, k: 0 <= q - k < 5),
    "sinks": (recipes.sinks(5, sinks=2), lambda q, k: 0 <= q - k < 5 or (k < 2 and k <= q)),
    "longformer": (
        recipes.longformer(2, [0, 9]),
        lambda q, k: abs(q - k) <= 2 or q in (0, 9) or k in (0, 9),
    ),
    "strided": (
        recipes.sparse_transformer(4),
        lambda q, k: k <= q and (q - k < 4 or (q - k) % 4 == 0),
    ),
    "fixed": (
        recipes.sparse_transformer(4, "fixed", summary=2, length=N),
        lambda q, k: k <= q and (q // 4 == k // 4 or k % 4 in (2, 3)),
    ),
    "chunked": (recipes.chunked(5), lambda q, k: k <= q and q // 5 == k // 5),
    "packed": (
        recipes.packed(lengths=[[5, 9, 10]]),
        lambda q, k: k <= q and DOCUMENTS[q] == DOCUMENTS[k],
    ),
    "shared_prefix": (
        recipes.shared_prefix(5, [9, 10]),
        lambda q, k: k <= q and (k < 5 or DOCUMENTS[q] == DOCUMENTS[k]),
    ),
    "image_text": (
        recipes.image_text(IMAGES),
        lambda q, k: k <= q or IMAGES[q] == IMAGES[k] != -1,
    ),
    "natten": (recipes.natten(4, 6, 3), natten),
    "block_diffusion": (recipes.block_diffusion(N // 2, 3), block_diffusion),
}


@pytest.mark.parametrize("name", RULES)
def test_recipe_matches_rule_of_paper(name: str) -> None:
    mask, rule = RULES[name]
    right = np.array([[rule(q, k) for k in range(N)] for q in range(N)])
    assert mask.on(N).equals(mw.dense(right))


def test_bert_and_gpt() -> None:
    not_padding = IDS != 0
    position = np.arange(N)
    bert = np.broadcast_to(not_padding[:, None, None, :], (2, 1, N, N))
    assert np.array_equal(recipes.bert(IDS).on(N).dense(), bert)
    gpt = bert & (position <= position[:, None])
    assert np.array_equal(recipes.gpt(IDS).on(N).dense(), gpt)


def test_translation() -> None:
    source, target = IDS, IDS[::-1, 4:]
    masks = recipes.translation(source, target)
    assert masks.encoder.on(N).equals(recipes.bert(source))
    assert masks.decoder.on(20).equals(recipes.gpt(target))
    cross = masks.cross.on(20, N).dense()
    assert np.array_equal(cross, np.broadcast_to((source != 0)[:, None, None], (2, 1, 20, N)))


def test_medusa_drafts_attend_to_past_and_their_path() -> None:
    paths = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)]
    past = 4
    bound = recipes.medusa(paths, past=past).on(past + len(paths))
    for i, path in enumerate(paths):
        visible = {k for start, stop in bound.spans.row(past + i) for k in range(start, stop)}
        own = {past + paths.index(path[:n]) for n in range(1, len(path) + 1)}
        assert visible == set(range(past)) | own
    for q in range(past):
        assert bound.spans.row(q) == [(0, q + 1)]


TYPES = [[0, 1, 1, 0, 0, 1, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]]


def test_image_text_finds_images_in_token_types() -> None:
    ids = [[-1, 0, 0, -1, -1, 1, -1, 2, 2, 2], [0, 0, -1, -1, -1, -1, -1, -1, -1, 1]]
    assert recipes.image_text(token_types=TYPES) == recipes.image_text(ids)
    assert recipes.image_text(token_types=TYPES[1]) == recipes.image_text(ids[1])
    assert recipes.image_text(token_types=[True, False]) == recipes.image_text([0, -1])
    assert recipes.image_text(token_types=[0, 0]).on(2).equals(mw.causal())
    assert recipes.image_text(token_types=[1, 1]).on(2).equals(mw.everything())  # one image
    for empty in (recipes.image_text([]), recipes.image_text(token_types=[])):
        assert empty.on(0).count() == 0


@pytest.mark.parametrize("seed", range(20))
def test_image_text_is_mask_of_gemma3_and_paligemma(seed: int) -> None:
    torch = pytest.importorskip("torch")
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    masking = pytest.importorskip("transformers.masking_utils")
    rng = np.random.default_rng(seed)
    batch, tokens = int(rng.integers(1, 4)), int(rng.integers(1, 12))
    types = torch.from_numpy(rng.integers(0, 2, (batch, tokens)))

    def or_causal(blocks: torch.Tensor) -> np.ndarray:
        see = masking.or_masks(masking.causal_mask_function, masking.blockwise_overlay(blocks))
        b, q, k = torch.arange(batch), torch.arange(tokens), torch.arange(tokens)
        return see(b[:, None, None], 0, q[:, None], k).numpy()[:, None]

    mask = recipes.image_text(token_types=types)
    gemma = or_causal(gemma3.get_block_sequence_ids_for_mask(types))
    assert np.array_equal(mask.on(tokens).dense(), gemma)
    # In PaliGemma, 0 is the image and the prompt, one bidirectional prefix, and 1 the answer.
    answer = torch.from_numpy(np.arange(tokens) >= rng.integers(0, tokens + 1, (batch, 1))).long()
    paligemma = or_causal(torch.where(answer == 0, 0, -1))
    assert np.array_equal(recipes.image_text(token_types=1 - answer).on(tokens).dense(), paligemma)
    prefix_lm = recipes.prefix_lm((answer == 0).sum(1))
    assert np.array_equal(prefix_lm.on(tokens).dense(), paligemma)


def test_bigbird_has_neighbouring_global_and_random_blocks() -> None:
    size, count = 4, 16
    bound = recipes.bigbird(size * count, block=size, random_blocks=2, seed=3).on(size * count)
    kinds = bound.tiles(size).kinds()[0, 0]
    assert set(kinds.flat) <= {0, 2}
    for i in range(count):
        required = {j for j in (i - 1, i, i + 1, 0, count - 1) if 0 <= j < count}
        on = set(np.flatnonzero(kinds[i]).tolist())
        if i in (0, count - 1):
            assert on == set(range(count))
        else:
            assert required <= on
            assert len(on) == len(required) + 2
    again = recipes.bigbird(size * count, block=size, random_blocks=2, seed=3)
    assert again == bound.mask
    assert recipes.bigbird(size * count, block=size, random_blocks=2, seed=4) != bound.mask


def test_bigbird_of_one_and_zero_blocks() -> None:
    assert recipes.bigbird(3, block=8).on(3).equals(mw.everything())
    assert recipes.bigbird(0).on(0).count() == 0


def test_local_global_has_every_sixth_layer_global() -> None:
    masks = recipes.local_global(13, size=8)
    assert [layer for layer, mask in enumerate(masks) if mask == mw.causal()] == [5, 11]
    assert set(masks) == {mw.causal(), mw.window(back=7)}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: recipes.sliding(0), "size=0"),
        (lambda: recipes.natten(4, 4, 2), "odd"),
        (lambda: recipes.block_diffusion(10, 3), "not a multiple"),
        (lambda: recipes.block_diffusion(10**12, 1), "larger block"),
        (lambda: recipes.bigbird(10**12), "larger block"),
        (lambda: recipes.bigbird(64, seed=-1), "seed=-1"),
        (lambda: recipes.sparse_transformer(4, "fixed"), "length"),
        (lambda: recipes.sparse_transformer(4, "other"), "'strided' or 'fixed'"),
        (lambda: recipes.sparse_transformer(4, "fixed", length=10**13), "2**31"),
        (lambda: recipes.sparse_transformer(4, "fixed", length=8).on(16), "8 columns"),
        (lambda: recipes.medusa([(0, 0)]), "no parent"),
        (lambda: recipes.medusa([(0,), (0,)]), "twice"),
        (lambda: recipes.medusa(5), "paths"),
        (lambda: recipes.shared_prefix(1, None), "None"),
        (lambda: recipes.shared_prefix(-1, [2]), "prompt=-1"),
        (lambda: recipes.natten(4, 4, 7), "4 × 4"),
        (lambda: recipes.natten(3, 8, 5), "3 × 8"),
        (lambda: recipes.natten(8, 3, 5), "8 × 3"),
        (lambda: recipes.natten(0, 4, 1), "natten: height=0"),
        (lambda: recipes.natten(4, 0, 1), "natten: width=0"),
        (lambda: recipes.image_text([0, 1, 1, 0]), "token_types"),
        (lambda: recipes.image_text([[0, 0], [1, 1]]), "token_types"),
        (lambda: recipes.image_text([0, 0, 0]), "token_types"),
        (lambda: recipes.image_text([-1, -2, 0]), "-2"),
        (lambda: recipes.image_text(), "images"),
        (lambda: recipes.image_text([-1, 0], token_types=[0, 1]), "images"),
        (lambda: recipes.image_text(token_types=[0, 2]), "2"),
        (lambda: recipes.image_text(token_types=[-1, 0]), "-1"),
        (lambda: recipes.image_text(token_types=[0.0, 1.0]), "float"),
        (lambda: recipes.image_text(token_types=1), "shape"),
        (lambda: recipes.longformer(None, [0]), "each_side"),
        (lambda: recipes.longformer(-1, [0]), "longformer: each_side=-1"),
        (lambda: recipes.sparse_transformer(4, "fixed", summary=5, length=8), "summary=5"),
        (lambda: recipes.sparse_transformer(4, "strided", length=8), "length"),
        (lambda: recipes.medusa([(0.5,)]), "float"),
        (lambda: recipes.medusa(["0", "1"]), "choices"),
        (lambda: recipes.medusa([(-1,)]), "-1"),
        (lambda: recipes.medusa([(0,)], past=0), "past=0"),
        (lambda: recipes.sinks(4, sinks=-1), "sinks=-1"),
        (lambda: recipes.local_global(-1), "layers=-1"),
        (lambda: recipes.local_global(2, every=0), "every=0"),
        (lambda: recipes.chunked(0), "size=0"),
    ],
)
def test_invalid_arguments_raise(call, text: str) -> None:
    with pytest.raises(mw.MaskError) as caught:
        call()
    assert text in str(caught.value)
