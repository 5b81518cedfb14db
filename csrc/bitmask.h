/* The mask of MR rows and up to BLOCK_N keys as bits, built from the rows' intervals. */
#ifndef MASKWRIGHT_BITMASK_H
#define MASKWRIGHT_BITMASK_H

#include "isa.h"
#include "vector.h"

enum { BLOCK_WORDS = BLOCK_N / 64, MAX_RUNS = BLOCK_N / 2 + 1 };

#define PANEL_BITS (NR == 64 ? ~(uint64_t)0 : ((uint64_t)1 << (NR % 64)) - 1)
#define VECTOR_BITS (((uint64_t)1 << W) - 1)

/* Consecutive keys or rows, counted from the start of the block. */
typedef struct {
    int64_t start, stop;
} Run;

typedef struct {
    uint64_t row[MR][BLOCK_WORDS];
    uint64_t any[BLOCK_WORDS];   /* some row attends to the key */
    uint64_t every[BLOCK_WORDS]; /* every row does */
    int words;                   /* the block has this many; the bits of the others are not set */
    int full;                    /* all cells are visible; then there are no bits */
    int64_t next;                /* first visible key after the block, or NO_KEY */
} BitMask;

static void set_bits(uint64_t *words, int64_t from, int64_t to) {
    int64_t first = from / 64, last = (to - 1) / 64;
    uint64_t head = ~(uint64_t)0 << (from % 64), tail = ~(uint64_t)0 >> (63 - (to - 1) % 64);
    if (first == last) {
        words[first] |= head & tail;
        return;
    }
    words[first] |= head;
    for (int64_t w = first + 1; w < last; w++) words[w] = ~(uint64_t)0;
    words[last] |= tail;
}

INLINE int bit_is_set(const uint64_t *words, int64_t i) { return words[i / 64] >> (i % 64) & 1; }

INLINE uint64_t panel_bits(const uint64_t *words, int panel) {
    return words[panel * NR / 64] >> (panel * NR % 64) & PANEL_BITS;
}

/* The bits of `nv` vectors of keys from `key` on, all in one word. */
INLINE uint32_t vector_bits(const uint64_t *words, int key, const int nv) {
    return (uint32_t)(words[key / 64] >> (key % 64)) & (uint32_t)(((uint64_t)1 << (nv * W)) - 1);
}

/* The vectors of a panel with a visible key: the first of them, and how many. */
INLINE int first_vector(const BitMask *mask, int panel, int *count) {
    int first = 0, last = NV;
    *count = NV;
    if (mask->full) return 0;
    while (first < NV && !vector_bits(mask->any, panel * NR + first * W, 1)) first++;
    while (last > first && !vector_bits(mask->any, panel * NR + (last - 1) * W, 1)) last--;
    *count = last - first;
    return first;
}

/* Does every row's next interval contain the whole block? */
INLINE int block_is_full(const mw_spans *spans, int64_t start, int64_t end,
                         const int64_t cursor[MR], const int64_t stop[MR], int64_t *next) {
    *next = NO_KEY;
    for (int r = 0; r < MR; r++) {
        int64_t i = cursor[r];
        if (i >= stop[r] || spans->starts[i] > start || spans->stops[i] < end) return 0;
        if (spans->stops[i] > end)
            *next = end;
        else if (i + 1 < stop[r])
            *next = min_i64(*next, spans->starts[i + 1]);
    }
    return 1;
}

/* The bits of the keys start ... start + length - 1, a multiple of 64. Row r has the intervals
 * cursor[r] ... stop[r] - 1 left; cursors advance past the intervals that end in the block. */
INLINE void bitmask_build(const mw_spans *spans, int64_t start, int64_t length, int64_t cursor[MR],
                          const int64_t stop[MR], BitMask *mask) {
    const int64_t end = start + length;
    const int count = (int)(length / 64);
    mask->words = count;
    mask->full = block_is_full(spans, start, end, cursor, stop, &mask->next);
    if (mask->full) return;
    mask->next = NO_KEY;
    for (int w = 0; w < count; w++) mask->any[w] = 0, mask->every[w] = ~(uint64_t)0;
    for (int r = 0; r < MR; r++) {
        uint64_t *words = mask->row[r];
        for (int w = 0; w < count; w++) words[w] = 0;
        int64_t i = cursor[r];
        while (i < stop[r] && spans->stops[i] <= start) i++;
        for (; i < stop[r] && spans->starts[i] < end; i++) {
            set_bits(words, max_i64(spans->starts[i] - start, 0),
                     min_i64(spans->stops[i], end) - start);
            if (spans->stops[i] > end) break;
        }
        cursor[r] = i;
        if (i < stop[r]) mask->next = min_i64(mask->next, max_i64(spans->starts[i], end));
        for (int w = 0; w < count; w++) mask->any[w] |= words[w], mask->every[w] &= words[w];
    }
}

/* The runs of set bits of a block of `length` keys, in order. */
static int bit_runs(const uint64_t *words, int64_t length, Run runs[MAX_RUNS]) {
    int count = 0;
    int64_t at = 0;
    while (at < length) {
        uint64_t left = words[at / 64] >> (at % 64);
        if (!left) {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += __builtin_ctzll(left);
        int64_t end = at;
        while (end < length) {
            uint64_t gaps = ~words[end / 64] >> (end % 64);
            if (gaps) {
                end = min_i64(end + __builtin_ctzll(gaps), (end / 64 + 1) * 64);
                if (end % 64 || end >= length || !(words[end / 64] & 1)) break;
            } else {
                end = (end / 64 + 1) * 64;
            }
        }
        runs[count++] = (Run){at, end};
        at = end;
    }
    return count;
}

/* The keys of the block that some row attends to. */
INLINE int visible_runs(const BitMask *mask, Run runs[MAX_RUNS]) {
    if (!mask->full) return bit_runs(mask->any, mask->words * 64, runs);
    runs[0] = (Run){0, mask->words * 64};
    return 1;
}

/* The same runs without the flagged elements. */
static int runs_without(const Run *runs, int count, const uint8_t *flags, Run *out) {
    int found = 0;
    for (int i = 0; i < count; i++) {
        int64_t start = runs[i].start;
        for (int64_t j = start; j < runs[i].stop; j++) {
            if (!flags[j]) continue;
            if (j > start) out[found++] = (Run){start, j};
            start = j + 1;
        }
        if (runs[i].stop > start) out[found++] = (Run){start, runs[i].stop};
    }
    return found;
}

#endif
