/* Threads are borrowed from the OpenMP library that PyTorch has loaded, so that no second pool
 * competes with PyTorch's. Without one, and in a forked child, whose copy of the pool has no
 * threads, they are started for each call. */
#include "threads.h"

#include "maskwright.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 256 };

#define POLL_SECONDS 0.1

typedef void (*Parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);

typedef struct {
    int64_t items;
    WorkItem work;
    void *context;
    char *scratch;
    size_t scratch_size;
    pthread_t caller;
    double next_poll; /* used by the calling thread only */
    _Atomic int64_t next_item, next_thread;
    _Atomic int cancelled;
} Job;

static _Atomic(int (*)(void)) interrupt;
static _Atomic(Parallel) borrowed;
static _Atomic int forked; /* stays set: the pool of the parent is never usable in a child */
static _Thread_local Job *current_job;
static _Thread_local int is_caller;

static void note_fork(void) { atomic_store(&forked, 1); }

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, note_fork);
}

void mw_set_interrupt(int (*is_interrupted)(void)) { atomic_store(&interrupt, is_interrupted); }

int mw_borrow_threads(void) {
    atomic_store(&borrowed, (Parallel)find_openmp_parallel());
    return mw_borrows_threads();
}

int mw_borrows_threads(void) { return atomic_load(&borrowed) && !atomic_load(&forked); }

static double seconds(void) {
    struct timespec now;
#if defined(CLOCK_MONOTONIC_COARSE)
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int cancelled(void) {
    Job *job = current_job;
    if (atomic_load_explicit(&job->cancelled, memory_order_relaxed)) return 1;
    if (!is_caller) return 0;
    double now = seconds();
    if (now < job->next_poll) return 0;
    job->next_poll = now + POLL_SECONDS;
    int (*is_interrupted)(void) = atomic_load(&interrupt);
    if (!is_interrupted || !is_interrupted()) return 0;
    atomic_store_explicit(&job->cancelled, 1, memory_order_relaxed);
    return 1;
}

static void work_loop(void *data) {
    Job *job = data;
    /* The function that `cancelled` calls may run a pass within this job, as a signal handler does. */
    Job *outer_job = current_job;
    const int outer_is_caller = is_caller;
    current_job = job;
    is_caller = pthread_equal(pthread_self(), job->caller);
    char *scratch = job->scratch;
    if (job->scratch_size)
        scratch += (size_t)atomic_fetch_add(&job->next_thread, 1) * job->scratch_size;
    for (;;) {
        int64_t item = atomic_fetch_add(&job->next_item, 1);
        if (item >= job->items || cancelled()) break;
        job->work(job->context, item, scratch);
    }
    current_job = outer_job;
    is_caller = outer_is_caller;
}

static void *thread_main(void *data) {
    work_loop(data);
    return NULL;
}

int64_t parallel_for(int64_t threads, int64_t items, WorkItem work, void *context, char *scratch,
                     size_t scratch_size) {
    Job job = {
        items, work, context, scratch, scratch_size, pthread_self(), seconds() + POLL_SECONDS,
        0,     0,    0};
    Parallel parallel = mw_borrows_threads() ? atomic_load(&borrowed) : NULL;
    if (threads > items) threads = items;
    if (threads <= 1) {
        work_loop(&job);
    } else if (parallel) {
        parallel(work_loop, &job, (unsigned)threads, 0);
    } else {
        pthread_t started[MAX_THREADS];
        int64_t count = 0;
        while (count < threads - 1 && count < MAX_THREADS &&
               !pthread_create(&started[count], NULL, thread_main, &job))
            count++;
        work_loop(&job);
        for (int64_t i = 0; i < count; i++) pthread_join(started[i], NULL);
    }
    return atomic_load(&job.cancelled) ? MW_ERR_INTERRUPTED : MW_OK;
}

/* -- scratch memory -------------------------------------------------------------------------- */

enum { HEADER = 64 }; /* bytes before the memory, which hold its size */

static _Atomic(size_t *) kept;

void *scratch_alloc(size_t size) {
    size_t *old = atomic_exchange(&kept, NULL);
    if (old && *old >= size) return (char *)old + HEADER;
    free(old);
    void *fresh;
    if (size > SIZE_MAX - HEADER || posix_memalign(&fresh, 64, size + HEADER)) return NULL;
    *(size_t *)fresh = size;
    return (char *)fresh + HEADER;
}

void scratch_free(void *memory) {
    if (!memory) return;
    size_t *header = (size_t *)((char *)memory - HEADER);
    if (*header > MAX_KEPT_BYTES)
        free(header);
    else
        free(atomic_exchange(&kept, header));
}
