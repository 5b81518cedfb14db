/* Cycles of each phase of both passes, counted while mw_profile is on. Off, a phase costs
 * one predictable branch. */
#ifndef MASKWRIGHT_PROFILE_H
#define MASKWRIGHT_PROFILE_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* In the order of the names in profile.c. */
enum {
    PHASE_PACK,
    PHASE_SCORES,
    PHASE_SOFTMAX,
    PHASE_PV,
    PHASE_ROWS, /* of scattered masks */
    PHASE_OUTPUT,
    PHASE_PREPARE,
    PHASE_DS,
    PHASE_DQ,
    PHASE_DK_DV,
    NUM_PHASES,
};

/* Start counting from 0, or stop. The counters are of all calls in the process. */
void mw_profile(int on);

/* The name and the cycles of the nth phase; NULL past the last. */
const char *mw_phase(int64_t n, int64_t *cycles);

extern _Atomic int profiling;
extern _Atomic int64_t phase_cycles[NUM_PHASES];

/* Cycles of the time stamp counter; elsewhere nanoseconds. */
static inline int64_t cycle_count(void) {
#if defined(__x86_64__)
    return (int64_t)__builtin_ia32_rdtsc();
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#endif
}

static inline int64_t phase_begin(void) {
    return atomic_load_explicit(&profiling, memory_order_relaxed) ? cycle_count() : 0;
}

/* Count the cycles since `begin` for a phase; returns the begin of the next one. */
static inline int64_t phase_end(int phase, int64_t begin) {
    if (!begin) return 0;
    int64_t now = cycle_count();
    atomic_fetch_add_explicit(&phase_cycles[phase], now - begin, memory_order_relaxed);
    return now;
}

#endif
