"""Faults that the audit does not find, or for which it names another cause or layer than expected."""

MISSED: set[str] = set()
MISSED_IN_BFLOAT16: set[str] = set()

OTHER_CAUSE = {
    "arithmetic on an integer mask: int16 made from ids: half's lowest number becomes 32",
    "arithmetic on an integer mask: int64 from the tokenizer, inverted by ~",
    "arithmetic on an integer mask: int8 in one layer of three: -32768 becomes 0",
    "arithmetic on an integer mask: uint8 from the tokenizer: -10000 becomes 240",
    "bias longer than the keys: padding of a rolling cache, wrong end",
    "fast path without padding: decoder without causal mask",
    "fast path without padding: padding restored on the other side",
    "fast path without padding: batch in another order",
    "mask added as 0 and 1: padding booleans, eager, layer 2",
    "mask gives NaN in half precision: running maximum from -1e9, window",
    "mask read at a wrong offset: batch stride 0, in eval mode",
    "mask read at a wrong offset: view of a larger buffer read as contiguous, without gradients",
    "padding mask not reordered along: beams of a KV cache",
    "padding mask not reordered along: beams of an encoder-decoder, source mask",
    "padding mask not reordered along: sorted by length and back, bidirectional",
    "padding mask not reordered along: two beams per sequence, mask repeated instead of interleaved",
    "padding mask on the query axis: SDPA, second layer of two",
    "padding mask on the query axis: filled with -10000, all layers",
    "padding mask on the query axis: under a causal mask, left padding",
    "ring attention over packed documents: earlier shard fully visible",
    "ring attention over packed documents: positions restart per shard",
    "ring attention over packed documents: document ids restart per shard",
    "ring attention over packed documents: zigzag tokens without document ids",
    "row filled with the lowest number: float32 minimum cast to bfloat16",
    "row filled with the lowest number: fused path in base 2",
    "row filled with the lowest number: fused path sums only larger values",
    "varlen without its causal flag: flag passed as the scale",
}

OTHER_LAYER = {
    "bias longer than the keys: padding of a rolling cache, wrong end",
    "gradient of the last block: guard after the exponential",
    "left padding without position ids: rotary, columns for queries, layer 1",
    "lowest number added twice: added in place to a shared bias",
    "mask gives NaN in half precision: running maximum from -1e9, window",
    "mask lost in a static cache: no mask for a single query, layer 1",
    "row filled with the lowest number: float32 minimum cast to bfloat16",
}
