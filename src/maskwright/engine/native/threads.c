/* Threads are borrowed from the OpenMP library that PyTorch has loaded, so that no second pool
 * waits for work beside PyTorch's. Where there is none, and in a child process, whose copy of that
 * pool has no threads, they are started for the call. */
#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MOST_THREADS = 256 };

typedef void (*Parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    int64_t items;
    Work work;
    void *context;
    char *spaces;
    size_t space_size;
    _Atomic int64_t next, helpers;
} Job;

static Parallel borrowed;
static _Atomic int is_child;

static void note_fork(void) { is_child = 1; }

/* Tell of a GOMP_parallel to borrow threads by, or NULL. */
void maskwright_borrow_threads(void *parallel) {
    static _Atomic int told;
    if (!atomic_exchange(&told, 1)) pthread_atfork(NULL, NULL, note_fork);
    borrowed = (Parallel)parallel;
    is_child = 0;
}

/* Are threads borrowed? */
int64_t maskwright_borrows_threads(void) { return borrowed && !is_child; }

static void help(void *given) {
    Job *job = given;
    char *space = job->spaces + (size_t)atomic_fetch_add(&job->helpers, 1) * job->space_size;
    for (;;) {
        int64_t item = atomic_fetch_add(&job->next, 1);
        if (item >= job->items) return;
        job->work(job->context, item, space);
    }
}

static void *help_along(void *given) {
    help(given);
    return NULL;
}

void run_items(int64_t threads, int64_t items, Work work, void *context, char *spaces,
               size_t space_size) {
    Job job = {items, work, context, spaces, space_size, 0, 0};
    if (threads > items) threads = items;
    if (threads <= 1) {
        help(&job);
    } else if (maskwright_borrows_threads()) {
        borrowed(help, &job, (unsigned)threads, 0);
    } else {
        pthread_t helpers[MOST_THREADS];
        int64_t started = 0;
        while (started < threads - 1 && started < MOST_THREADS &&
               !pthread_create(&helpers[started], NULL, help_along, &job))
            started++;
        help(&job);
        for (int64_t i = 0; i < started; i++) pthread_join(helpers[i], NULL);
    }
}

/* ── memory ────────────────────────────────────────────────────────────────────────────────── */

enum { MOST_KEPT = 1 << 27 };

typedef struct {
    size_t size;
} Header; /* stands 64 bytes before what is handed out */

static _Atomic(void *) kept;

void *take_memory(size_t size) {
    Header *old = atomic_exchange(&kept, NULL);
    if (old && old->size >= size) return (char *)old + 64;
    free(old);
    void *fresh;
    if (size > SIZE_MAX - 64 || posix_memalign(&fresh, 64, size + 64)) return NULL;
    ((Header *)fresh)->size = size;
    return (char *)fresh + 64;
}

void give_memory(void *memory) {
    if (!memory) return;
    Header *header = (Header *)((char *)memory - 64);
    if (header->size > MOST_KEPT) {
        free(header);
        return;
    }
    free(atomic_exchange(&kept, (void *)header));
}
