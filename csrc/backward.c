/* Scheduling of the backward pass: whole units where there are many, else key blocks of a wave of
 * units, which all threads share. */
#include "isa.h"
#include "threads.h"
#include "work.h"

#include <stdlib.h>

enum { UNITS_PER_THREAD = 4, ROW_BLOCKS_PER_ITEM = 16 };

typedef struct {
    const mw_args *args;
    const Isa *isa;
    size_t unit_size, scratch_size;
    int64_t units, row_items; /* of the current wave; items of a unit's rows */
    BackwardUnit *wave;
    int64_t threads;
    char *scratch; /* of all threads */
} Backward;

static void open_unit(const Backward *b, int64_t unit, char *memory, BackwardUnit *u) {
    b->isa->backward_unit(b->args, unit / b->args->kv_heads, unit % b->args->kv_heads, memory, u);
}

static int64_t next_kv_block(const BackwardUnit *u, int64_t row_block) {
    return atomic_load_explicit(&u->next_kv_block[row_block], memory_order_relaxed);
}

/* Prepare the row blocks whose first key block is `block`, and find those of the next one. */
static void prepare_rows(const Backward *b, BackwardUnit *u, int64_t block) {
    u->next_first = u->next_last = 0;
    for (int64_t n = 0; n < u->row_blocks; n++) {
        if (u->states[n] != ROWS_UNREAD) continue;
        const int64_t first = next_kv_block(u, n);
        if (first == block) {
            b->isa->backward_prepare(b->args, u, n, n + 1);
            u->states[n] = ROWS_PREPARED;
        } else if (first == block + 1) {
            if (!u->next_last) u->next_first = n;
            u->next_last = n + 1;
        }
    }
}

/* Write dQ of the row blocks that have no key block left. */
static void write_rows(const Backward *b, BackwardUnit *u) {
    for (int64_t n = 0; n < u->row_blocks; n++) {
        if (u->states[n] != ROWS_PREPARED || next_kv_block(u, n) < u->kv_blocks) continue;
        b->isa->backward_write_dq(b->args, u, n, n + 1);
        u->states[n] = ROWS_WRITTEN;
    }
}

/* A row block is prepared before its first key block and written after its last one: between them
 * it stays in the cache if the mask is narrow. Row blocks without a visible cell come at the end. */
static void whole_unit_item(void *context, int64_t unit, void *scratch) {
    const Backward *b = context;
    BackwardUnit u;
    open_unit(b, unit, (char *)scratch + b->scratch_size, &u);
    find_visible(b->args, unit, u.visible);
    b->isa->backward_tiles(b->args, &u, 0, u.row_blocks);
    for (int64_t block = 0; block <= u.kv_blocks && !cancelled(); block++) {
        prepare_rows(b, &u, block);
        if (block < u.kv_blocks) b->isa->backward_kv_block(b->args, &u, block, scratch);
        write_rows(b, &u);
    }
}

/* The first item of a unit finds its visible keys, the others prepare rows. */
static void prepare_item(void *context, int64_t item, void *scratch) {
    const Backward *b = context;
    BackwardUnit *u = &b->wave[item / (b->row_items + 1)];
    int64_t n = item % (b->row_items + 1) - 1;
    (void)scratch;
    if (n < 0) {
        find_visible(b->args, u->batch * b->args->kv_heads + u->kv_head, u->visible);
    } else {
        const int64_t first = n * ROW_BLOCKS_PER_ITEM;
        const int64_t last = min_i64(first + ROW_BLOCKS_PER_ITEM, u->row_blocks);
        b->isa->backward_tiles(b->args, u, first, last);
        b->isa->backward_prepare(b->args, u, first, last);
    }
}

/* The next key block of the thread's own units; then of the others. Threads that share no unit do
 * not wait for each other, and dQ stays in their caches. */
static void kv_block_item(void *context, int64_t item, void *scratch) {
    const Backward *b = context;
    int64_t thread = (int64_t)((size_t)((char *)scratch - b->scratch) / b->scratch_size);
    int64_t first = thread * b->units / b->threads;
    (void)item;
    for (int64_t n = 0; n < b->units; n++) {
        BackwardUnit *u = &b->wave[(first + n) % b->units];
        int64_t block = atomic_fetch_add(&u->next_item, 1);
        if (block >= u->kv_blocks) continue;
        b->isa->backward_kv_block(b->args, u, block, scratch);
        return;
    }
}

static void write_item(void *context, int64_t item, void *scratch) {
    const Backward *b = context;
    BackwardUnit *u = &b->wave[item / b->row_items];
    int64_t n = item % b->row_items;
    (void)scratch;
    b->isa->backward_write_dq(b->args, u, n * ROW_BLOCKS_PER_ITEM,
                              min_i64((n + 1) * ROW_BLOCKS_PER_ITEM, u->row_blocks));
}

static int64_t run_wave(Backward *b, int64_t threads, char *scratch) {
    b->threads = threads;
    b->scratch = scratch;
    int64_t status = parallel_for(threads, b->units * (b->row_items + 1), prepare_item, b, NULL, 0);
    if (status == MW_OK)
        status = parallel_for(threads, b->units * b->wave[0].kv_blocks, kv_block_item, b, scratch,
                              b->scratch_size);
    if (status == MW_OK)
        status = parallel_for(threads, b->units * b->row_items, write_item, b, NULL, 0);
    return status;
}

/* Must the units be processed one after the other? */
static int in_order(const mw_args *args) { return args->scores && args->scores->in_order; }

static int64_t backward_waves(Backward *b, int64_t threads) {
    const mw_args *args = b->args;
    int64_t wave = wave_units(args, threads, b->unit_size,
                              ceil_div(args->kv_len, b->isa->bwd_block_n));
    if (in_order(args)) wave = 1;
    char *memory = scratch_alloc(b->scratch_size * (size_t)threads + b->unit_size * (size_t)wave);
    b->wave = malloc((size_t)wave * sizeof *b->wave);
    int64_t status = memory && b->wave ? MW_OK : MW_ERR_NO_MEMORY;
    for (int64_t first = 0; status == MW_OK && first < num_units(args); first += wave) {
        b->units = min_i64(wave, num_units(args) - first);
        for (int64_t n = 0; n < b->units; n++)
            open_unit(b, first + n,
                      memory + b->scratch_size * (size_t)threads + b->unit_size * (size_t)n,
                      &b->wave[n]);
        b->row_items = ceil_div(b->wave[0].row_blocks, ROW_BLOCKS_PER_ITEM);
        status = run_wave(b, threads, memory);
    }
    free(b->wave);
    scratch_free(memory);
    return status;
}

static void scattered_item(void *context, int64_t unit, void *scratch) {
    const Backward *b = context;
    b->isa->scattered_backward(b->args, unit, scratch);
}

/* Units in parallel: each is computed by one thread. */
static int64_t scattered_pass(const mw_args *args, const Isa *isa, int64_t threads) {
    Backward b = {.args = args, .isa = isa};
    const size_t each = (size_t)round_up((int64_t)isa->scattered_backward_size(args), 64);
    threads = min_i64(threads, num_units(args));
    char *memory = scratch_alloc(each * (size_t)threads);
    if (!memory) return MW_ERR_NO_MEMORY;
    int64_t status = parallel_for(threads, num_units(args), scattered_item, &b, memory, each);
    scratch_free(memory);
    return status;
}

int64_t backward_pass(const mw_args *args, const Isa *isa) {
    if (is_scattered(args, 1)) return scattered_pass(args, isa, num_threads(args));
    Backward b = {.args = args, .isa = isa, .unit_size = isa->backward_unit_size(args)};
    int64_t threads = num_threads(args);
    b.scratch_size = (size_t)round_up((int64_t)isa->backward_scratch(args), 64);
    if (!takes_whole_units(args, threads, UNITS_PER_THREAD, b.unit_size) ||
        (threads > 1 && in_order(args)))
        return backward_waves(&b, threads);
    size_t each = b.scratch_size + b.unit_size;
    threads = min_i64(threads, num_units(args));
    char *memory = scratch_alloc(each * (size_t)threads);
    if (!memory) return MW_ERR_NO_MEMORY;
    int64_t status = parallel_for(threads, num_units(args), whole_unit_item, &b, memory, each);
    scratch_free(memory);
    return status;
}
