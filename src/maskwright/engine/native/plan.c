/* Units, their teams, and the memory for their packed keys. */
#include "plan.h"

#include <string.h>

int64_t threads_for(const Attention *a) {
    const double little = 1 << 20; /* products that are done before another thread is awake */
    double most = (double)a->batch * (double)a->heads * (double)a->rows * (double)a->keys;
    return most * (double)(a->dim + a->value_dim) < little ? 1 : larger(a->threads, 1);
}

Shape shape_of(const Attention *a, const Isa *isa) {
    Shape s = {0};
    int64_t group = a->heads / a->key_heads;
    s.team_heads = a->spans.heads == 1 ? group : 1;
    s.teams = group / s.team_heads;
    s.panels = (a->keys + isa->panel_keys - 1) / isa->panel_keys;
    s.packs = (s.panels + PANELS_A_PACK - 1) / PANELS_A_PACK;
    s.words = (s.panels * isa->panel_keys + 63) / 64;
    s.panel_floats = s.panels * isa->panel_keys * a->dim;
    s.value_stride = isa->values_as_given(a) ? 0 : isa->values_width(a);
    s.value_floats = a->keys * s.value_stride;
    s.keys = a->keys;
    s.packed_size = 4 * (size_t)(round_up(s.panel_floats, 16) + round_up(s.value_floats, 16)) +
                    seen_size(&s);
    return s;
}

size_t seen_size(const Shape *shape) {
    return 8 * (size_t)round_up(shape->words, 8) + 4 * (size_t)round_up(shape->keys + 1, 16);
}

Packed seen_at(const Shape *shape, char *memory) {
    Packed p = {0};
    p.seen = (uint64_t *)memory;
    p.change = (int32_t *)(p.seen + round_up(shape->words, 8));
    return p;
}

Packed packed_at(const Shape *shape, char *memory) {
    size_t floats = (size_t)(round_up(shape->panel_floats, 16) + round_up(shape->value_floats, 16));
    Packed p = seen_at(shape, memory + 4 * floats);
    p.panels = (float *)memory;
    p.values = p.panels + round_up(shape->panel_floats, 16);
    return p;
}

Team team_of(const Attention *a, const Shape *shape, int64_t unit, int64_t team) {
    Team t;
    t.batch = unit / a->key_heads;
    t.key_head = unit % a->key_heads;
    t.heads = shape->team_heads;
    t.first_head = t.key_head * shape->teams * t.heads + team * t.heads;
    int64_t plane = (a->spans.batch == 1 ? 0 : t.batch) * a->spans.heads +
                    (a->spans.heads == 1 ? 0 : t.first_head);
    t.offsets = a->spans.offsets + plane * a->rows;
    return t;
}

Keys keys_of(const Attention *a, const Isa *isa, const Shape *shape, int64_t unit,
             const Packed *packed) {
    Keys keys = {packed->panels, packed->values, shape->value_stride};
    (void)isa;
    if (!shape->value_stride) {
        keys.value_stride = a->v.row;
        keys.values = (const float *)a->v.data + unit / a->key_heads * a->v.batch +
                      unit % a->key_heads * a->v.head;
    }
    return keys;
}

void find_seen(const Attention *a, const Shape *shape, int64_t unit, Packed *packed) {
    int32_t *change = packed->change;
    memset(change, 0, (size_t)(a->keys + 1) * sizeof *change);
    for (int64_t n = 0; n < shape->teams; n++) {
        Team team = team_of(a, shape, unit, n);
        for (int64_t i = team.offsets[0]; i < team.offsets[a->rows]; i++) {
            change[a->spans.starts[i]]++;
            change[a->spans.stops[i]]--;
        }
    }
    memset(packed->seen, 0, (size_t)shape->words * 8);
    int32_t depth = 0;
    for (int64_t key = 0; key < a->keys; key++) {
        depth += change[key];
        packed->seen[key / 64] |= (uint64_t)(depth > 0) << (key % 64);
    }
}
