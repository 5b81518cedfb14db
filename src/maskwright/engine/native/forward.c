/* The forward pass as items of work: packing keys, then blocks of rows. */
#include "attend.h"
#include "plan.h"
#include "threads.h"

#include <string.h>

typedef struct {
    const Attention *a;
    const Isa *isa;
    Shape shape;
    char *packed;    /* keys of every unit, or NULL where each thread packs its own */
    int64_t blocks;  /* blocks of rows of a team */
    size_t own;      /* bytes of a thread's space that the kernel takes */
} Forward;

static void whole_unit(void *context, int64_t unit, void *space) {
    const Forward *f = context;
    Packed packed = packed_at(&f->shape, (char *)space + f->own);
    find_seen(f->a, &f->shape, unit, &packed);
    Keys keys = keys_of(f->a, f->isa, &f->shape, unit, &packed);
    f->isa->pack(f->a, packed.seen, unit / f->a->key_heads, unit % f->a->key_heads, 0,
                 f->shape.panels, &keys);
    for (int64_t n = 0; n < f->shape.teams; n++) {
        Team team = team_of(f->a, &f->shape, unit, n);
        f->isa->forward(f->a, &team, &keys, 0, f->a->rows * team.heads, space);
    }
}

static void seen_keys(void *context, int64_t unit, void *space) {
    const Forward *f = context;
    Packed packed = packed_at(&f->shape, f->packed + (size_t)unit * f->shape.packed_size);
    (void)space;
    find_seen(f->a, &f->shape, unit, &packed);
}

static void pack_some(void *context, int64_t item, void *space) {
    const Forward *f = context;
    int64_t unit = item / f->shape.packs, first = item % f->shape.packs * PANELS_A_PACK;
    Packed packed = packed_at(&f->shape, f->packed + (size_t)unit * f->shape.packed_size);
    Keys keys = keys_of(f->a, f->isa, &f->shape, unit, &packed);
    (void)space;
    f->isa->pack(f->a, packed.seen, unit / f->a->key_heads, unit % f->a->key_heads, first,
                 smaller(first + PANELS_A_PACK, f->shape.panels), &keys);
}

/* The last blocks of rows come first: under a causal mask they take longest. */
static void block(void *context, int64_t item, void *space) {
    const Forward *f = context;
    int64_t units = f->a->batch * f->a->key_heads * f->shape.teams;
    int64_t n = item % units, first = (f->blocks - 1 - item / units) * f->isa->block_rows;
    int64_t unit = n / f->shape.teams;
    Packed packed = packed_at(&f->shape, f->packed + (size_t)unit * f->shape.packed_size);
    Keys keys = keys_of(f->a, f->isa, &f->shape, unit, &packed);
    Team team = team_of(f->a, &f->shape, unit, n % f->shape.teams);
    int64_t stop = smaller(first + f->isa->block_rows, f->a->rows * team.heads);
    f->isa->forward(f->a, &team, &keys, first, stop, space);
}

/* ── few rows ──────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const Attention *a;
    const Isa *isa;
    Shape shape;
    int64_t parts; /* of the keys */
    float *found;
    int64_t apart; /* floats that one part leaves */
} Few;

static void some_keys(void *context, int64_t item, void *space) {
    const Few *f = context;
    int64_t n = item / f->parts, first = item % f->parts * KEYS_A_PART;
    Team team = team_of(f->a, &f->shape, n / f->shape.teams, n % f->shape.teams);
    f->isa->few(f->a, &team, first, smaller(first + KEYS_A_PART, f->a->keys),
                f->found + item * f->apart, space);
}

static void merge_parts(void *context, int64_t n, void *space) {
    const Few *f = context;
    Team team = team_of(f->a, &f->shape, n / f->shape.teams, n % f->shape.teams);
    (void)space;
    f->isa->few_merge(f->a, &team, f->found + n * f->parts * f->apart, f->parts);
}

static int64_t few_pass(const Attention *a, const Isa *isa, int64_t threads) {
    Few f = {.a = a, .isa = isa, .shape = shape_of(a, isa), .apart = isa->few_floats(a)};
    int64_t teams = a->batch * a->key_heads * f.shape.teams;
    f.parts = larger((a->keys + KEYS_A_PART - 1) / KEYS_A_PART, 1);
    size_t own = (size_t)round_up((int64_t)isa->few_space(a), 64);
    char *memory = take_memory(own * (size_t)threads + 4 * (size_t)(teams * f.parts * f.apart));
    if (!memory) return NO_MEMORY;
    f.found = (float *)(memory + own * (size_t)threads);
    run_items(threads, teams * f.parts, some_keys, &f, memory, own);
    run_items(1, teams, merge_parts, &f, memory, 0);
    give_memory(memory);
    return DONE;
}

int64_t forward_pass(const Attention *a, const Isa *isa) {
    Forward f = {.a = a, .isa = isa, .shape = shape_of(a, isa)};
    int64_t units = a->batch * a->key_heads, threads = threads_for(a);
    if (a->rows * f.shape.team_heads <= FEW_ROWS && !a->binary) return few_pass(a, isa, threads);
    f.own = (size_t)round_up((int64_t)isa->forward_space(a), 64);
    if (threads == 1 || units >= UNITS_A_THREAD * threads) {
        size_t each = f.own + f.shape.packed_size;
        char *memory = take_memory(each * (size_t)threads);
        if (!memory) return NO_MEMORY;
        run_items(threads, units, whole_unit, &f, memory, each);
        give_memory(memory);
        return DONE;
    }
    char *memory = take_memory(f.own * (size_t)threads + f.shape.packed_size * (size_t)units);
    if (!memory) return NO_MEMORY;
    f.packed = memory + f.own * (size_t)threads;
    f.blocks = (a->rows * f.shape.team_heads + isa->block_rows - 1) / isa->block_rows;
    run_items(threads, units, seen_keys, &f, memory, 0);
    run_items(threads, units * f.shape.packs, pack_some, &f, memory, 0);
    run_items(threads, units * f.shape.teams * f.blocks, block, &f, memory, f.own);
    give_memory(memory);
    return DONE;
}
