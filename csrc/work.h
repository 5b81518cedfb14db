/* How a call is divided: units, which are (batch, kv_head) pairs, their GQA groups, and the memory
 * of packed keys. */
#ifndef MASKWRIGHT_WORK_H
#define MASKWRIGHT_WORK_H

#include "isa.h"

enum {
    WAVE_BYTES = 48 << 20, /* units are processed in waves whose shared memory is about this */
    ITEMS_PER_THREAD = 8,  /* work items of a wave, at least */
};

/* Multiply-adds of a unit up to which one thread may take it as a single work item. */
#define MAX_UNIT_WORK 4e9

static inline int64_t num_units(const mw_args *args) { return args->batch * args->kv_heads; }

/* Query heads of a GQA group, and groups of a KV head: heads with their own planes of the mask are
 * groups of one. */
static inline int64_t group_heads(const mw_args *args) {
    return args->spans.heads == 1 ? args->heads / args->kv_heads : 1;
}
static inline int64_t groups_per_kv_head(const mw_args *args) {
    return args->heads / args->kv_heads / group_heads(args);
}

static inline GqaGroup gqa_group(const mw_args *args, int64_t unit, int64_t index) {
    GqaGroup g = {.batch = unit / args->kv_heads, .kv_head = unit % args->kv_heads};
    g.heads = group_heads(args);
    g.first_head = g.kv_head * (args->heads / args->kv_heads) + index * g.heads;
    int64_t plane = (args->spans.batch == 1 ? 0 : g.batch) * args->spans.heads +
                    (args->spans.heads == 1 ? 0 : g.first_head);
    g.offsets = args->spans.offsets + plane * args->q_len;
    return g;
}

/* Threads worth starting; and whether each may take whole units, of which there are at least
 * units_per_thread for each. */
int64_t num_threads(const mw_args *args);
int takes_whole_units(const mw_args *args, int64_t threads, int64_t units_per_thread,
                      size_t unit_size);

/* Units of a wave, so that it has enough items, and not much more memory than WAVE_BYTES. */
int64_t wave_units(const mw_args *args, int64_t threads, size_t unit_size, int64_t items_per_unit);

/* The keys that some row of a unit attends to: a bit per key, followed by scratch. */
size_t visible_size(const mw_args *args);
void find_visible(const mw_args *args, int64_t unit, uint64_t *visible);

/* Do neighbouring rows share so few keys that rows are computed one by one (scattered.h)? */
int is_scattered(const mw_args *args, int backward);

int64_t forward_pass(const mw_args *args, const Isa *isa);
int64_t backward_pass(const mw_args *args, const Isa *isa);

#endif
