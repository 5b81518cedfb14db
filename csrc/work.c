/* How a call is divided into units, and which keys of a unit are visible. */
#include "work.h"

#include <string.h>

int64_t num_threads(const mw_args *args) {
    const double small =
        1 << 17; /* multiply-adds that are done before another thread has started */
    double cells = (double)args->batch * (double)args->heads * (double)args->q_len *
                   (double)args->kv_len;
    return cells * (double)(args->head_dim + args->v_head_dim) < small ? 1 : args->threads;
}

int takes_whole_units(const mw_args *args, int64_t threads, int64_t units_per_thread,
                      size_t unit_size) {
    double work = (double)(args->heads / args->kv_heads) * (double)args->q_len *
                  (double)args->kv_len * (double)(args->head_dim + args->v_head_dim);
    if (threads == 1) return 1;
    const int64_t units = num_units(args);
    const int small = work * (double)units < (1 << 22); /* a wave would have too little per item */
    const int balanced = units >= units_per_thread * threads ||
                         (units % threads == 0 && (small || units >= 4 * threads));
    return balanced && work <= MAX_UNIT_WORK && unit_size * (size_t)threads <= WAVE_BYTES;
}

int64_t wave_units(const mw_args *args, int64_t threads, size_t unit_size, int64_t items_per_unit) {
    int64_t fit = WAVE_BYTES / (int64_t)unit_size;
    int64_t busy = ceil_div(ITEMS_PER_THREAD * threads, items_per_unit);
    return min_i64(max_i64(max_i64(fit, busy), 1), num_units(args));
}

static int64_t visible_words(const mw_args *args) { return round_up(args->kv_len + 64, 64) / 64; }

size_t visible_size(const mw_args *args) {
    return 8 * (size_t)round_up(visible_words(args), 8) +
           4 * (size_t)round_up(args->kv_len + 1, 16);
}

void find_visible(const mw_args *args, int64_t unit, uint64_t *visible) {
    int32_t *change = (int32_t *)(visible + round_up(visible_words(args), 8));
    memset(change, 0, (size_t)(args->kv_len + 1) * sizeof *change);
    for (int64_t n = 0; n < groups_per_kv_head(args); n++) {
        GqaGroup group = gqa_group(args, unit, n);
        for (int64_t i = group.offsets[0]; i < group.offsets[args->q_len]; i++) {
            change[args->spans.starts[i]]++;
            change[args->spans.stops[i]]--;
        }
    }
    memset(visible, 0, (size_t)visible_words(args) * 8);
    int32_t depth = 0;
    for (int64_t key = 0; key < args->kv_len; key++) {
        depth += change[key];
        visible[key / 64] |= (uint64_t)(depth > 0) << (key % 64);
    }
}

/* -- scattered masks ------------------------------------------------------------------------- */

enum {
    SAMPLES = 32,           /* row groups of the mask that are looked at */
    SAMPLE_ROWS = 8,        /* rows of a row group */
    SAMPLE_INTERVALS = 128, /* of each row, at most */
    SAMPLE_PANEL = 32,      /* keys of a panel */
};

/* Costs in cells: of a row group in tiles, where each row has the panels and keys of all of them, and
 * of its rows one by one, where a cell takes longer. */
typedef struct {
    double tiles, rows;
} Costs;

/* Measured: a cell of a row relative to one of a tile, and the cells that a row takes beside its own. */
#define FORWARD_CELL_COST 1.5
#define BACKWARD_CELL_COST 1.9
#define ROW_COST 32

static void add_costs(const mw_spans *spans, const int64_t *offsets, int64_t first, int64_t count,
                      int64_t heads, double cell_cost, Costs *costs) {
    int64_t cursor[SAMPLE_ROWS], stop[SAMPLE_ROWS], panels = 0, keys = 0, last_panel = -1;
    for (int64_t r = 0; r < count; r++) {
        cursor[r] = offsets[first + r];
        stop[r] = min_i64(offsets[first + r + 1], cursor[r] + SAMPLE_INTERVALS);
        int64_t cells = 0;
        for (int64_t i = cursor[r]; i < stop[r]; i++) cells += spans->stops[i] - spans->starts[i];
        costs->rows += (double)heads * (ROW_COST + 2 * cell_cost * (double)cells);
    }
    for (;;) { /* the union of the intervals, from left to right */
        int64_t start = NO_KEY;
        for (int64_t r = 0; r < count; r++)
            if (cursor[r] < stop[r]) start = min_i64(start, spans->starts[cursor[r]]);
        if (start == NO_KEY) break;
        int64_t end = start;
        for (int grown = 1; grown;) {
            grown = 0;
            for (int64_t r = 0; r < count; r++)
                for (; cursor[r] < stop[r] && spans->starts[cursor[r]] <= end;
                     cursor[r]++, grown = 1)
                    end = max_i64(end, spans->stops[cursor[r]]);
        }
        int64_t from = max_i64(start / SAMPLE_PANEL, last_panel + 1);
        last_panel = (end - 1) / SAMPLE_PANEL;
        panels += last_panel + 1 - from;
        keys += end - start;
    }
    costs->tiles += SAMPLE_ROWS * (double)(panels * SAMPLE_PANEL + keys);
}

int is_scattered(const mw_args *args, int backward) {
    const mw_spans *spans = &args->spans;
    const int64_t planes = spans->batch * spans->heads;
    if (args->dropout.p > 0 || changes_scores(args)) return 0;
    if (spans->offsets[planes * args->q_len] <= planes * args->q_len) return 0;
    const int64_t heads = group_heads(args), rows = max_i64(SAMPLE_ROWS / heads, 1);
    const int64_t groups = ceil_div(args->q_len, rows), samples = min_i64(SAMPLES, planes * groups);
    Costs costs = {0, 0};
    for (int64_t n = 0; n < samples; n++) {
        const int64_t group = n * (planes * groups) / samples;
        const int64_t first = group % groups * rows;
        add_costs(spans, spans->offsets + group / groups * args->q_len, first,
                  min_i64(rows, args->q_len - first), heads,
                  backward ? BACKWARD_CELL_COST : FORWARD_CELL_COST, &costs);
    }
    return costs.rows < costs.tiles;
}
