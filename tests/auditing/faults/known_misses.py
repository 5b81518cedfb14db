"""Faults that the audit does not find, or for which it names another cause or layer than expected."""

MISSED = {
    "mask changed by an id: an image id anywhere makes attention bidirectional",
    "mask changed by an id: everything before the last separator is a prefix",
}
# Healthy twins with findings: rounding to half precision changes which keys they choose
FALSE_ALARMS = {
    "keys chosen before the mask: top 5 of all keys, then causal",
    "keys chosen before the mask: one set of keys for all queries",
    "keys chosen before the mask: padding takes part in the choice",
}
MISSED_IN_BFLOAT16: set[str] = set()

OTHER_CAUSE = {
    "blocks chosen by summaries that include the future: blocks of 3, layer 1",
    "blocks chosen by summaries that include the future: the current block is summarised",
    "computed from the length of the sequence: window of a third of the sequence",
    "cross-attention with the decoder's mask: padding of the first sequence for all",
    "documents found by position 0: positions continue over documents",
    "keys chosen before the mask: one set of keys for all queries",
    "keys chosen before the mask: padding takes part in the choice",
    "keys chosen before the mask: top 5 of all keys, then causal",
    "mask changed by an id: keys of repeated ids hidden, later repetitions too",
    "no causal mask for a batch of one: mask squeezed: queries take the place of the batch",
    "random in eval mode: dropout of attention weights",
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
    "causal lost at multiples of a block: multiples of 32, layer 1",
    "mask table shorter than the sequence: last layer of three, more than 128",
    "packed rows flattened: layer 1 only",
    "static cache in pieces: causal within a piece lost, layer 1",
    "bias longer than the keys: padding of a rolling cache, wrong end",
    "gradient of the last block: guard after the exponential",
    "left padding without position ids: rotary, columns for queries, layer 1",
    "lowest number added twice: added in place to a shared bias",
    "mask gives NaN in half precision: running maximum from -1e9, window",
    "mask lost in a static cache: no mask for a single query, layer 1",
    "row filled with the lowest number: float32 minimum cast to bfloat16",
}
