/* How a call is divided into units, and which keys of a unit are visible. */
#include "work.h"

#include <string.h>

int64_t num_threads(const KernelArgs *args) {
    const double small = 1 << 20; /* multiply-adds that are done before another thread has started */
    double cells = (double)args->batch * (double)args->heads * (double)args->q_len *
                   (double)args->kv_len;
    return cells * (double)(args->head_dim + args->v_head_dim) < small ? 1 : args->threads;
}

int takes_whole_units(const KernelArgs *args, int64_t threads, int64_t units_per_thread,
                      size_t unit_size) {
    double work = (double)(args->heads / args->kv_heads) * (double)args->q_len *
                  (double)args->kv_len * (double)(args->head_dim + args->v_head_dim);
    if (threads == 1) return 1;
    return num_units(args) >= units_per_thread * threads && work <= MAX_UNIT_WORK &&
           unit_size * (size_t)threads <= WAVE_BYTES;
}

int64_t wave_units(const KernelArgs *args, int64_t threads, size_t unit_size,
                   int64_t items_per_unit) {
    int64_t fit = WAVE_BYTES / (int64_t)unit_size;
    int64_t busy = ceil_div(ITEMS_PER_THREAD * threads, items_per_unit);
    return min_i64(max_i64(max_i64(fit, busy), 1), num_units(args));
}

static int64_t visible_words(const KernelArgs *args) { return round_up(args->kv_len + 64, 64) / 64; }

size_t visible_size(const KernelArgs *args) {
    return 8 * (size_t)round_up(visible_words(args), 8) + 4 * (size_t)round_up(args->kv_len + 1, 16);
}

void find_visible(const KernelArgs *args, int64_t unit, uint64_t *visible) {
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
