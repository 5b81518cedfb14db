"""English texts of the codes of findings: what each means, and how to fix it."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    # Values of a mask array
    "fill-at-limit.meaning": "the fill value is so close to the lowest number of the dtype that "
    "adding to it overflows to -inf",
    "fill-at-limit.fix": "Combine masks as bool and fill once, with finfo(dtype).min / 2, or leave "
    "a key visible in such rows.",
    "fill-overflows.meaning": "the fill value is out of range of the dtype of the scores",
    "fill-overflows.fix": "Fill with torch.finfo(scores.dtype).min or -inf, by masked_fill and not "
    "by a product.",
    "fill-too-weak.meaning": "the fill value is too close to 0 to mask a key",
    "fill-too-weak.fix": "Fill with -inf or torch.finfo(scores.dtype).min.",
    "integer-bias.meaning": "an integer array is added to the scores",
    "integer-bias.fix": "Pass a bool mask, or 0 and -inf in the dtype of the scores.",
    "integer-wrapped.meaning": "~ or - of an integer mask of 0 and 1 does not invert it",
    "integer-wrapped.fix": "Convert the mask to bool before inverting it: mask == 0.",
    "nan-value.meaning": "the array contains NaN",
    "nan-value.fix": "Use where(mask, 0.0, -inf) instead of a product: 0 * -inf is NaN.",
    "no-values.meaning": "the values of the array cannot be read",
    "no-values.fix": "Pass a bool or numeric array that holds data.",
    "odd-values.meaning": "an integer mask contains values other than 0 and 1",
    "odd-values.fix": "Pass a bool mask, or documents(ids=...) for document ids, or "
    "padding(ids=..., pad_id=...) for token ids.",
    "positive-value.meaning": "a positive value is added to the scores, which does not mask a key",
    "positive-value.fix": "Negate the fill value: 0 where a key is visible, -inf where it is masked.",
    "summed-fills.meaning": "two additive masks were summed",
    "summed-fills.fix": "Combine the masks as bool with &, and fill once.",
    "wrong-form.meaning": "an additive mask is passed where a bool mask is read",
    "wrong-form.fix": "Pass mask == 0, or pass the array to an argument that adds it.",
    "zero-one-added.meaning": "a mask of 0 and 1 is added to the scores, which masks nothing",
    "zero-one-added.fix": "Pass a bool mask, or add where(mask, 0.0, -inf).",
    "wrong-device.meaning": "the mask is on another device than the queries and keys",
    "wrong-device.fix": "Move the mask: mask.to(query.device).",
    # Its shape
    "batch-on-heads.meaning": "the batch axis of the mask broadcasts to the heads",
    "batch-on-heads.fix": "Make the shape (batch, 1, query, key): mask[:, None].",
    "batch-on-queries.meaning": "the batch axis of the mask broadcasts to the queries",
    "batch-on-queries.fix": "Make the shape (batch, 1, 1, key): mask[:, None, None, :].",
    "does-not-broadcast.meaning": "an axis is neither 1 nor the size of attention",
    "does-not-broadcast.fix": "Make the shape (batch, heads, query, key), with 1 where the mask "
    "does not vary.",
    "does-not-fit.meaning": "the arguments describe other sizes than those of the mask",
    "does-not-fit.fix": "Pass a mask and arguments of the same sizes.",
    "keys-mismatch.meaning": "the mask has more or fewer keys than attention",
    "keys-mismatch.fix": "Build the mask for these sizes, or slice it: mask[..., :kv_len].",
    "queries-mismatch.meaning": "the mask has more or fewer queries than attention",
    "queries-mismatch.fix": "Build the mask for these sizes, or slice it: mask[..., :q_len, :].",
    "wrong-rank.meaning": "the number of axes is wrong",
    "wrong-rank.fix": "Make the shape (batch, heads, query, key), with 1 where the mask does not "
    "vary.",
    # Its cells
    "aligned-lower-right.meaning": "the mask is aligned to the lower right corner instead of the "
    "upper left",
    "aligned-lower-right.fix": "Align the mask to the first key: q_start=0.",
    "aligned-upper-left.meaning": "the mask is aligned to the upper left corner instead of the "
    "lower right, as a KV cache requires",
    "aligned-upper-left.fix": "Align the mask to the last key: tril(diagonal=kv_len - q_len), or "
    "mask.step(position).",
    "differs.meaning": "the mask differs from the expected mask",
    "differs.fix": "Use the expected mask.",
    "documents-leak.meaning": "packed documents attend to each other",
    "documents-leak.fix": "Combine the mask with documents(ids=...), and restart the positions.",
    "empty-row.meaning": "a query row is fully masked",
    "empty-row.fix": "Make one key visible, such as the query's own position, or use attention "
    "that returns 0 for fully masked rows.",
    "future-visible.meaning": "future keys are not masked",
    "future-visible.fix": "Combine the mask with causal().",
    "inverted.meaning": "the mask is inverted",
    "inverted.fix": "Invert the mask, or use the convention of the argument: True keeps (SDPA) or "
    "True masks (nn.MultiheadAttention).",
    "own-position-hidden.meaning": "a query does not attend to its own position",
    "own-position-hidden.fix": "Keep the diagonal: tril() where True keeps, triu(diagonal=1) where "
    "True masks.",
    "padding-on-queries.meaning": "the padding mask is applied to queries instead of keys",
    "padding-on-queries.fix": "Mask keys: the shape is (batch, 1, 1, key), mask[:, None, None, :].",
    "padding-visible.meaning": "padding is not masked",
    "padding-visible.fix": "Combine the mask with padding(...).",
    "queries-and-keys-swapped.meaning": "the mask is transposed",
    "queries-and-keys-swapped.fix": "Transpose the last two axes of the mask.",
    "real-key-hidden.meaning": "a token that is not padding is masked for every query",
    "real-key-hidden.fix": "Mask only padding.",
    "window-missing.meaning": "the sliding window is missing",
    "window-missing.fix": "Combine the mask with window(back=...).",
    "window-off-by-one.meaning": "the sliding window is one key too long or too short",
    "window-off-by-one.fix": "Count the query itself: a window of W keys is window(back=W - 1).",
    "window-too-narrow.meaning": "the sliding window is shorter than expected",
    "window-too-narrow.fix": "Widen the window: W keys, the query included, are window(back=W - 1).",
    "window-too-wide.meaning": "the sliding window is longer than expected",
    "window-too-wide.fix": "Shorten the window: W keys, the query included, are window(back=W - 1).",
    # A model
    "after-softmax.meaning": "the mask is applied after the softmax",
    "after-softmax.fix": "Mask the scores before the softmax: scores.masked_fill(~mask, -inf).",
    "attends-across-batch.meaning": "attention runs over the batch axis instead of the positions",
    "attends-across-batch.fix": "Pass batch_first=True, or transpose (batch, position) before "
    "attention.",
    "dtype-differs.meaning": "the model uses another mask in half precision",
    "dtype-differs.fix": "Build the mask as bool, and let attention choose the fill value.",
    "empty-row-nan.meaning": "a fully masked row gives NaN",
    "empty-row-nan.fix": "Leave a key visible in every row, or return 0 for such rows, as "
    "mw.attention does.",
    "ignores-input.meaning": "the outputs do not depend on the inputs",
    "ignores-input.fix": "Check that the intended output is selected and that no weights are 0.",
    "mask-missing.meaning": "no mask is applied",
    "mask-missing.fix": "Pass the mask to attention.",
    "missing-in-layer.meaning": "this layer applies no mask, other layers do",
    "missing-in-layer.fix": "Pass the mask to every layer.",
    "not-finite.meaning": "outputs or gradients are not finite",
    "not-finite.fix": "Check for overflow before the softmax and for fully masked rows.",
    "not-through-attention.meaning": "the masks are correct: another operation mixes positions",
    "not-through-attention.fix": "Check the operations along the positions other than attention.",
    "order-of-batch.meaning": "the mask belongs to another sequence of the batch",
    "order-of-batch.fix": "Reorder the mask together with the sequences.",
    "path-differs.meaning": "this way to run the model uses another mask",
    "path-differs.fix": "Apply the same mask in every code path.",
    "positions-shifted.meaning": "position ids count padding, or do not restart per sequence",
    "positions-shifted.fix": "Count positions from the first token of each sequence: "
    "attention_mask.cumsum(-1) - 1.",
    "raises.meaning": "the model raises an exception",
    "raises.fix": "Run the model alone on these inputs.",
    "step-differs.meaning": "decoding with the KV cache differs from one forward pass",
    "step-differs.fix": "Pass the mask rows of each step over all cached keys: mask.step(position).",
    "too-narrow.meaning": "keys that should be visible are masked",
    "too-narrow.fix": "Compare the mask with the expected one: mw.lint(mask, expects=...).",
}
