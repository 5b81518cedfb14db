/* The counters of profile.h. */
#include "profile.h"

#include <stddef.h>

_Atomic int profiling;
_Atomic int64_t phase_cycles[NUM_PHASES];

void mw_profile(int on) {
    for (int n = 0; on && n < NUM_PHASES; n++) atomic_store(&phase_cycles[n], 0);
    atomic_store(&profiling, on != 0);
}

const char *mw_phase(int64_t n, int64_t *cycles) {
    static const char *const names[] = {
        [PHASE_PACK] = "pack K and V",
        [PHASE_SCORES] = "scores",
        [PHASE_SOFTMAX] = "softmax",
        [PHASE_PV] = "P V",
        [PHASE_ROWS] = "rows of scattered masks",
        [PHASE_OUTPUT] = "write results",
        [PHASE_PREPARE] = "backward: prepare rows",
        [PHASE_DS] = "backward: P and dS",
        [PHASE_DQ] = "backward: dQ",
        [PHASE_DK_DV] = "backward: dK and dV",
    };
    if (n < 0 || n >= NUM_PHASES) return NULL;
    *cycles = atomic_load(&phase_cycles[n]);
    return names[n];
}
