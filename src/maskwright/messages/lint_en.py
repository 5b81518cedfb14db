"""English texts of the findings of lint."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "lint.finding": "{code}: {reason} {fix}",
    "lint.no_findings": "no findings",
    # Parts of sentences
    "lint.at_anywhere": "",
    "lint.at_batch": " (batch row {batch})",
    "lint.at_head": " (head {head})",
    "lint.at_batch_head": " (batch row {batch}, head {head})",
    "lint.axis_b": "batch rows",
    "lint.axis_h": "heads",
    "lint.axis_q": "queries",
    "lint.axis_k": "keys",
    "lint.addend_score": "a score",
    "lint.addend_mask": "another mask",
    "lint.more": " and {count} more",
    "lint.no_more": "",
    # Values of a mask array
    "fill-at-limit.message": "The fill value {fill:.5g} is close to the lowest number of the dtype: "
    "adding {addend} gives -inf, and a fully masked row gives NaN.",
    "fill-overflows.message": "The fill value {fill:.5g} is out of range of {dtype}, whose lowest "
    "number is {limit:.5g}: it becomes -inf, and 0 * -inf is NaN.",
    "fill-too-weak.message": "The fill value {fill:.3g} is too close to 0: a score difference "
    "of the same size cancels it.",
    "integer-bias.message": "Expected a floating-point array to add to the scores, got {dtype}.",
    "integer-wrapped.message": "The array contains {low} and {high}: {operator} of 0 and 1 in "
    "{dtype} wraps around.",
    "nan-value.message": "The array contains NaN: every score that it is added to becomes NaN.",
    "no-values.message": "The values of the mask cannot be read: {error}.",
    "odd-values.message": "Expected 0 and 1, got {value}.",
    "positive-value.message": "The array contains {value:.3g}: it raises a score instead of masking "
    "the key.",
    "summed-fills.message": "Expected one fill value, got {high:.3g} and {low:.3g}: two additive "
    "masks were summed.",
    "wrong-form.message": "Expected a bool mask, got an additive mask: read as bool, 0 masks and "
    "every other value keeps.",
    "zero-one-added.message": "Expected 0 and -inf, got 0 and 1 ({dtype}): added to the scores, they "
    "mask nothing.",
    "wrong-device.message": "Expected the mask on {expected}, the device of queries and keys, got "
    "{actual}.",
    # Its shape
    "batch-on-heads.broadcast": "Shape {shape} broadcasts from the right, so its {batch} batch rows "
    "align with the heads (pass axes='hqk' if they are heads).",
    "batch-on-heads.axis": "Shape {shape} has its {batch} batch rows on the heads axis: expected "
    "mask.swapaxes(0, 1).",
    "batch-on-queries.message": "Shape {shape} broadcasts from the right, so its {batch} batch rows "
    "align with the queries (pass axes='qk' if they are queries).",
    "does-not-broadcast.message": "Expected {expected} {axis} or 1, got {actual}: shape {shape}.",
    "does-not-broadcast.batch": "Shape {shape} broadcasts from the right, so its {batch} batch rows "
    "align with {count} {axis}: expected {index}.",
    "does-not-fit.message": "{error}.",
    "keys-mismatch.message": "Expected {expected} keys, got {actual}: shape {shape}.",
    "queries-mismatch.message": "Expected {expected} queries, got {actual}: shape {shape}.",
    "wrong-rank.message": "Expected {expected}, got {rank} axes: shape {shape}.",
    # Its cells
    "aligned-lower-right.message": "Expected the first query at position {expected}, got {actual}.",
    "aligned-upper-left.message": "Expected the first query at position {expected}, got {actual}.",
    "differs.message": "Expected {mask}: {reason}.",
    "documents-leak.message": "Query {query}{at} attends to key {key}, but {terms}.",
    "empty-row.nan": "Query {query}{at}{more}: every key is masked, so softmax gives NaN.",
    "empty-row.uniform": "Query {query}{at}{more}: every key is masked, so softmax is uniform over "
    "all keys (each score is {fill:.3g}).",
    "future-visible.message": "Query {query}{at} attends to key {key}, a later position.",
    "inverted.complement": "Expected {mask}, got its complement.",
    "inverted.future": "Every query attends only to later keys.",
    "inverted.padding": "Query {query}{at} attends to key {key}, which is padding, and no query "
    "attends to tokens.",
    "inverted.window": "No query attends to itself, and each one masks a single interval of keys.",
    "own-position-hidden.message": "Query {query}{at} does not attend to key {key}, its own "
    "position.",
    "padding-on-queries.message": "Query {query}{at} attends to key {key}, which is padding, while "
    "the rows of padding queries are masked.",
    "padding-on-queries.rows": "Every query attends to all keys or to none.",
    "padding-visible.message": "Query {query}{at} attends to key {key}, which is padding.",
    "queries-and-keys-swapped.message": "Expected {mask}, got its transpose.",
    "real-key-hidden.message": "Key {key}{at} is not padding, but no query attends to it.",
    "window.back": "Expected {window}, {expected} keys back including the query, got {actual} keys.",
    "window.ahead": "Expected {window}, {expected} keys ahead, got {actual} keys.",
}
