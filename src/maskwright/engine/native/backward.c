/* The backward pass as items of work: a unit each, or parts of one where units are few. */
#include "attend.h"
#include "plan.h"
#include "threads.h"

typedef struct {
    const Attention *a;
    const Isa *isa;
    Shape shape;
    size_t own;      /* bytes of a thread's space that the kernel takes */
    int64_t parts;   /* of a unit */
    float *dq;       /* of every part, or NULL where units are whole */
    int64_t dq_size; /* floats of one */
} Backward;

static void part_of_unit(void *context, int64_t item, void *space) {
    const Backward *w = context;
    const Attention *a = w->a;
    int64_t unit = item / w->parts;
    Packed known = seen_at(&w->shape, (char *)space + w->own);
    find_seen(a, &w->shape, unit, &known);
    w->isa->backward(a, known.seen, unit / a->key_heads, unit % a->key_heads, item % w->parts,
                     w->parts, w->dq ? w->dq + item * w->dq_size : NULL, space);
}

static void sum_of_parts(void *context, int64_t unit, void *space) {
    const Backward *w = context;
    (void)space;
    w->isa->write_dq(w->a, unit / w->a->key_heads, unit % w->a->key_heads,
                     w->dq + unit * w->parts * w->dq_size, w->parts, w->dq_size);
}

int64_t backward_pass(const Attention *a, const Isa *isa) {
    Backward w = {.a = a, .isa = isa, .shape = shape_of(a, isa), .parts = 1};
    int64_t units = a->batch * a->key_heads, threads = threads_for(a);
    int64_t most = larger((a->keys + isa->back_keys - 1) / isa->back_keys, 1);
    if (threads > 1 && units < PARTS_A_THREAD * threads)
        w.parts = smaller((PARTS_A_THREAD * threads + units - 1) / units, most);
    w.own = (size_t)round_up((int64_t)isa->backward_space(a), 64);
    w.dq_size = round_up(isa->dq_floats(a), 16);
    size_t each = w.own + seen_size(&w.shape);
    size_t sums = w.parts == 1 ? 0 : 4 * (size_t)(units * w.parts * w.dq_size);
    char *memory = take_memory(each * (size_t)threads + sums);
    if (!memory) return NO_MEMORY;
    if (w.parts > 1) w.dq = (float *)(memory + each * (size_t)threads);
    run_items(threads, units * w.parts, part_of_unit, &w, memory, each);
    if (w.parts > 1) run_items(threads, units, sum_of_parts, &w, memory, 0);
    give_memory(memory);
    return DONE;
}
