/* Which keys of a step each row of a group sees: bits, made from the rows' intervals by cursors
 * that only go forward. */

enum { STEP_WORDS = STEP / 64, PANELS = STEP / NR };

typedef struct {
    int64_t start, stop;
} Run;

typedef struct {
    uint64_t row[MR][STEP_WORDS];
    uint64_t any[STEP_WORDS]; /* seen by some row of the group */
    uint64_t every[STEP_WORDS];
    int full;     /* every row sees every key of the step; then no bits are made */
    int64_t next; /* where the first key after this step is seen; FAR where none is */
} Marks;

#define FAR INT64_MAX

static void mark(uint64_t *words, int64_t from, int64_t to) {
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

/* Does every row's next interval hold all of the keys at … end - 1? */
INLINE int sees_all(const Spans *spans, int64_t at, int64_t end, const int64_t cursor[MR],
                    const int64_t stop[MR], int64_t *next) {
    *next = FAR;
    for (int r = 0; r < MR; r++) {
        int64_t i = cursor[r];
        if (i >= stop[r] || spans->starts[i] > at || spans->stops[i] < end) return 0;
        if (spans->stops[i] > end)
            *next = end;
        else if (i + 1 < stop[r])
            *next = smaller(*next, spans->starts[i + 1]);
    }
    return 1;
}

/* The marks of the keys at … at + length - 1, at most STEP of them. Row r has the intervals
 * cursor[r] … stop[r] - 1 left. */
INLINE void mark_step(const Spans *spans, int64_t at, int64_t length, int64_t cursor[MR],
                      const int64_t stop[MR], Marks *marks) {
    const int64_t end = at + length;
    marks->full = sees_all(spans, at, end, cursor, stop, &marks->next);
    if (marks->full) return;
    marks->next = FAR;
    for (int w = 0; w < STEP_WORDS; w++) marks->any[w] = 0, marks->every[w] = ~(uint64_t)0;
    for (int r = 0; r < MR; r++) {
        uint64_t *words = marks->row[r];
        for (int w = 0; w < STEP_WORDS; w++) words[w] = 0;
        int64_t i = cursor[r];
        while (i < stop[r] && spans->stops[i] <= at) i++;
        for (; i < stop[r] && spans->starts[i] < end; i++) {
            mark(words, larger(spans->starts[i] - at, 0), smaller(spans->stops[i], end) - at);
            if (spans->stops[i] > end) break;
        }
        cursor[r] = i;
        if (i < stop[r]) marks->next = smaller(marks->next, larger(spans->starts[i], end));
        for (int w = 0; w < STEP_WORDS; w++)
            marks->any[w] |= words[w], marks->every[w] &= words[w];
    }
}

INLINE uint64_t panel_bits(const uint64_t *words, int panel) {
    const uint64_t whole = NR == 64 ? ~(uint64_t)0 : ((uint64_t)1 << (NR % 64)) - 1;
    return words[panel * NR / 64] >> (panel * NR % 64) & whole;
}

/* The stretches of keys that some row sees, in order; at most one every second key. */
INLINE int runs_of(const Marks *marks, int64_t length, Run runs[STEP / 2 + 1]) {
    const uint64_t *words = marks->any;
    int count = 0;
    int64_t at = 0;
    if (marks->full) {
        runs[0] = (Run){0, length};
        return 1;
    }
    while (at < STEP) {
        uint64_t left = words[at / 64] >> (at % 64);
        if (!left) {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += __builtin_ctzll(left);
        int64_t end = at;
        while (end < STEP) {
            uint64_t gaps = ~words[end / 64] >> (end % 64);
            if (gaps) {
                end = smaller(end + __builtin_ctzll(gaps), (end / 64 + 1) * 64);
                if (end % 64 || end >= STEP || !(words[end / 64] & 1)) break;
            } else {
                end = (end / 64 + 1) * 64;
            }
        }
        runs[count++] = (Run){at, end};
        at = end;
    }
    return count;
}
