/* Scheduling of the forward pass: pack K and V, then blocks of rows; or split-KV decode. */
#include "isa.h"
#include "threads.h"
#include "work.h"

enum { UNITS_PER_THREAD = 8, PANELS_PER_ITEM = 64, KEYS_PER_SPLIT = 2048 };

typedef struct {
    const mw_args *args;
    const Isa *isa;
    int64_t first_unit, units; /* of the current wave */
    int64_t panels, pack_items, row_blocks, groups;
    int64_t panel_floats, v_floats, v_stride; /* of a unit; v_stride is 0 if V is read in place */
    size_t packed_size, scratch_size;
    char *packed;
    void (*pack)(const mw_args *args, const uint64_t *visible, int64_t batch, int64_t kv_head,
                 int64_t first_panel, int64_t last_panel, PackedKV *kv);
    void (*rows)(const mw_args *args, const GqaGroup *group, const PackedKV *kv, int64_t first_row,
                 int64_t last_row, void *scratch);
} Forward;

static Forward plan_forward(const mw_args *args, const Isa *isa) {
    Forward f = {.args = args, .isa = isa, .groups = groups_per_kv_head(args)};
    f.panels = ceil_div(args->kv_len, isa->panel_keys);
    f.pack_items = ceil_div(f.panels, PANELS_PER_ITEM);
    f.row_blocks = ceil_div(args->q_len * group_heads(args), isa->block_m);
    f.v_stride = isa->v_in_place(args) ? 0 : isa->v_width(args);
    const int scattered = is_scattered(args, 0);
    f.pack = scattered ? isa->pack_rows : isa->pack;
    f.rows = scattered ? isa->scattered_forward : isa->forward;
    f.panel_floats = f.panels * isa->panel_keys * round_up(args->head_dim, scattered ? 16 : 1);
    f.panel_floats = round_up(f.panel_floats, 16);
    f.v_floats = round_up(args->kv_len * f.v_stride, 16);
    f.packed_size = 4 * (size_t)(f.panel_floats + f.v_floats) + visible_size(args);
    f.scratch_size = scattered ? isa->scattered_scratch(args) : isa->forward_scratch(args);
    f.scratch_size = (size_t)round_up((int64_t)f.scratch_size, 64);
    return f;
}

/* Packed K and V of a unit in `memory`, and its visible keys. */
static PackedKV packed_kv(const Forward *f, int64_t unit, char *memory, uint64_t **visible) {
    PackedKV kv = {(float *)memory, (float *)memory + f->panel_floats, f->v_stride, 0, 0};
    *visible = (uint64_t *)((float *)memory + f->panel_floats + f->v_floats);
    if (!f->v_stride) {
        const mw_args *args = f->args;
        kv.v_stride = args->v.row_stride;
        kv.v = tensor_row(&args->v, args->dtype, unit / args->kv_heads, unit % args->kv_heads, 0);
    }
    return kv;
}

static char *unit_memory(const Forward *f, int64_t unit) {
    return f->packed + (size_t)(unit - f->first_unit) * f->packed_size;
}

/* The panels first ... last - 1 that have all keys of some rows of a group. */
typedef struct {
    int64_t first, last;
} PanelRange;

static PanelRange panels_of_rows(const Forward *f, const GqaGroup *group, int64_t first_row,
                                 int64_t last_row) {
    const mw_spans *spans = &f->args->spans;
    int64_t first = NO_KEY, last = 0;
    for (int64_t row = first_row / group->heads; row * group->heads < last_row; row++) {
        if (group->offsets[row] == group->offsets[row + 1]) continue;
        first = min_i64(first, spans->starts[group->offsets[row]]);
        last = max_i64(last, spans->stops[group->offsets[row + 1] - 1]);
    }
    if (first == NO_KEY) return (PanelRange){0, 0};
    return (PanelRange){first / f->isa->panel_keys, ceil_div(last, f->isa->panel_keys)};
}

/* Pack the panels of `wanted` that are not in `packed`, and extend `packed` by them. */
static void extend_packed(const Forward *f, const uint64_t *visible, int64_t unit, PackedKV *kv,
                          PanelRange wanted, PanelRange *packed) {
    const mw_args *args = f->args;
    const int64_t batch = unit / args->kv_heads, kv_head = unit % args->kv_heads;
    if (wanted.first == wanted.last) return;
    if (packed->first == packed->last) packed->first = packed->last = wanted.first;
    if (wanted.first < packed->first) {
        f->pack(args, visible, batch, kv_head, wanted.first, packed->first, kv);
        packed->first = wanted.first;
    }
    if (wanted.last > packed->last) {
        f->pack(args, visible, batch, kv_head, packed->last, wanted.last, kv);
        packed->last = wanted.last;
    }
}

/* Units with the same planes of the mask have the same number. */
static int64_t planes_of_unit(const mw_args *args, int64_t unit) {
    if (args->spans.heads > 1) return unit;
    return args->spans.batch > 1 ? unit / args->kv_heads : 0;
}

/* The planes of which a thread has the visible keys; after its packed keys. */
static int64_t *known_planes(const Forward *f, void *scratch) {
    return (int64_t *)((char *)scratch + f->scratch_size + f->packed_size);
}

/* Keys are packed when the first block of rows needs them: then they are in the cache. */
static void whole_unit_item(void *context, int64_t unit, void *scratch) {
    const Forward *f = context;
    const mw_args *args = f->args;
    uint64_t *visible;
    PackedKV kv = packed_kv(f, unit, (char *)scratch + f->scratch_size, &visible);
    PanelRange packed = {0, 0};
    if (*known_planes(f, scratch) != planes_of_unit(args, unit)) find_visible(args, unit, visible);
    *known_planes(f, scratch) = planes_of_unit(args, unit);
    for (int64_t n = 0; n < f->groups; n++) {
        GqaGroup group = gqa_group(args, unit, n);
        const int64_t rows = args->q_len * group.heads, step = f->isa->block_m;
        PanelRange wanted = panels_of_rows(f, &group, 0, min_i64(step, rows));
        for (int64_t first = 0; first < rows && !cancelled(); first += step) {
            const int64_t last = min_i64(first + step, rows);
            extend_packed(f, visible, unit, &kv, wanted, &packed);
            wanted = panels_of_rows(f, &group, last, min_i64(last + step, rows));
            kv.next_first = min_i64(packed.last * f->isa->panel_keys, args->kv_len);
            kv.next_last = min_i64(wanted.last * f->isa->panel_keys, args->kv_len);
            kv.next_last = max_i64(min_i64(kv.next_last, kv.next_first + step), kv.next_first);
            f->rows(args, &group, &kv, first, last, scratch);
        }
    }
}

static void visible_item(void *context, int64_t item, void *scratch) {
    const Forward *f = context;
    uint64_t *visible;
    (void)scratch;
    packed_kv(f, f->first_unit + item, unit_memory(f, f->first_unit + item), &visible);
    find_visible(f->args, f->first_unit + item, visible);
}

static void pack_item(void *context, int64_t item, void *scratch) {
    const Forward *f = context;
    int64_t unit = f->first_unit + item / f->pack_items;
    int64_t first = item % f->pack_items * PANELS_PER_ITEM;
    uint64_t *visible;
    (void)scratch;
    PackedKV kv = packed_kv(f, unit, unit_memory(f, unit), &visible);
    f->pack(f->args, visible, unit / f->args->kv_heads, unit % f->args->kv_heads, first,
            min_i64(first + PANELS_PER_ITEM, f->panels), &kv);
}

/* The last row blocks come first: with a causal mask they take longest. */
static void rows_item(void *context, int64_t item, void *scratch) {
    const Forward *f = context;
    int64_t groups = f->units * f->groups, n = item % groups;
    int64_t first = (f->row_blocks - 1 - item / groups) * f->isa->block_m;
    int64_t unit = f->first_unit + n / f->groups;
    uint64_t *visible;
    PackedKV kv = packed_kv(f, unit, unit_memory(f, unit), &visible);
    GqaGroup group = gqa_group(f->args, unit, n % f->groups);
    int64_t last = min_i64(first + f->isa->block_m, f->args->q_len * group.heads);
    f->rows(f->args, &group, &kv, first, last, scratch);
}

/* -- split-KV decode ------------------------------------------------------------------------- */

typedef struct {
    const mw_args *args;
    const Isa *isa;
    int64_t groups, splits;
    float *partials;
    int64_t partial_floats;
} Decode;

static void split_item(void *context, int64_t item, void *scratch) {
    const Decode *d = context;
    int64_t n = item / d->splits, first = item % d->splits * KEYS_PER_SPLIT;
    GqaGroup group = gqa_group(d->args, n / d->groups, n % d->groups);
    d->isa->decode_split(d->args, &group, first, min_i64(first + KEYS_PER_SPLIT, d->args->kv_len),
                         d->partials + item * d->partial_floats, scratch);
}

static int64_t decode_pass(const mw_args *args, const Isa *isa, int64_t threads) {
    Decode d = {.args = args, .isa = isa, .groups = groups_per_kv_head(args)};
    int64_t groups = num_units(args) * d.groups;
    d.splits = ceil_div(args->kv_len, KEYS_PER_SPLIT);
    d.partial_floats = isa->decode_partial_floats(args);
    size_t scratch = (size_t)round_up((int64_t)isa->decode_scratch(args), 64);
    char *memory = scratch_alloc(scratch * (size_t)threads +
                                 4 * (size_t)(groups * d.splits * d.partial_floats));
    if (!memory) return MW_ERR_NO_MEMORY;
    d.partials = (float *)(memory + scratch * (size_t)threads);
    int64_t status = parallel_for(threads, groups * d.splits, split_item, &d, memory, scratch);
    for (int64_t n = 0; status == MW_OK && n < groups; n++) {
        GqaGroup group = gqa_group(args, n / d.groups, n % d.groups);
        isa->decode_merge(args, &group, d.partials + n * d.splits * d.partial_floats, d.splits);
    }
    scratch_free(memory);
    return status;
}

/* -------------------------------------------------------------------------------------------- */

/* Units in waves; all threads share the packed keys. */
static int64_t forward_waves(Forward *f, int64_t threads) {
    int64_t wave = wave_units(f->args, threads, f->packed_size, f->row_blocks * f->groups);
    char *memory = scratch_alloc(f->scratch_size * (size_t)threads + f->packed_size * (size_t)wave);
    int64_t status = MW_OK;
    if (!memory) return MW_ERR_NO_MEMORY;
    f->packed = memory + f->scratch_size * (size_t)threads;
    for (int64_t first = 0; status == MW_OK && first < num_units(f->args); first += wave) {
        f->first_unit = first;
        f->units = min_i64(wave, num_units(f->args) - first);
        status = parallel_for(threads, f->units, visible_item, f, memory, 0);
        if (status == MW_OK)
            status = parallel_for(threads, f->units * f->pack_items, pack_item, f, memory, 0);
        if (status == MW_OK)
            status = parallel_for(threads, f->units * f->groups * f->row_blocks, rows_item, f,
                                  memory, f->scratch_size);
    }
    scratch_free(memory);
    return status;
}

int64_t forward_pass(const mw_args *args, const Isa *isa) {
    int64_t threads = num_threads(args);
    if (args->q_len * group_heads(args) <= MAX_DECODE_ROWS) return decode_pass(args, isa, threads);
    Forward f = plan_forward(args, isa);
    if (!takes_whole_units(args, threads, UNITS_PER_THREAD, f.packed_size))
        return forward_waves(&f, threads);
    size_t each = f.scratch_size + f.packed_size + 64;
    threads = min_i64(threads, num_units(args));
    char *memory = scratch_alloc(each * (size_t)threads);
    if (!memory) return MW_ERR_NO_MEMORY;
    for (int64_t i = 0; i < threads; i++) *known_planes(&f, memory + each * (size_t)i) = -1;
    int64_t status = parallel_for(threads, num_units(args), whole_unit_item, &f, memory, each);
    scratch_free(memory);
    return status;
}
