/* What both passes share: units (a batch row and a key head), their teams, and packed keys. */
#ifndef MASKWRIGHT_PLAN_H
#define MASKWRIGHT_PLAN_H

#include "attend.h"

enum {
    PANELS_A_PACK = 64,
    UNITS_A_THREAD = 8, /* from which on each thread takes whole units, and packs them itself */
    KEYS_A_PART = 2048, /* where rows are few and work is split over keys */
    PARTS_A_THREAD = 4, /* of the backward pass, at least, so that all have work to the end */
};

typedef struct {
    int64_t teams, team_heads; /* of a unit; query heads of a team */
    int64_t panels, packs;     /* of a unit */
    int64_t words;             /* of 64 keys */
    int64_t value_stride;      /* of packed values; 0 where they are read as given */
    size_t packed_size;        /* bytes of a unit's packed keys, with what is known of them */
    int64_t panel_floats, value_floats, keys;
} Shape;

typedef struct {
    uint64_t *seen;  /* one bit a key */
    int32_t *change; /* room to find them by */
    float *panels, *values;
} Packed;

/* How many threads are worth waking. */
int64_t threads_for(const Attention *a);

Shape shape_of(const Attention *a, const Isa *isa);
Packed packed_at(const Shape *shape, char *memory);
Packed seen_at(const Shape *shape, char *memory); /* what is seen alone, without packed keys */
size_t seen_size(const Shape *shape);
Team team_of(const Attention *a, const Shape *shape, int64_t unit, int64_t team);
Keys keys_of(const Attention *a, const Isa *isa, const Shape *shape, int64_t unit,
             const Packed *packed);

/* Which keys some row of the unit's teams sees. */
void find_seen(const Attention *a, const Shape *shape, int64_t unit, Packed *packed);

int64_t forward_pass(const Attention *a, const Isa *isa);
int64_t backward_pass(const Attention *a, const Isa *isa);

#endif
