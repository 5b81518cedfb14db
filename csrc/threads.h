/* Parallel loops, cancellation, and scratch memory. */
#ifndef MASKWRIGHT_THREADS_H
#define MASKWRIGHT_THREADS_H

#include <stddef.h>
#include <stdint.h>

/* One work item. No two threads have the same scratch at a time. */
typedef void (*WorkItem)(void *context, int64_t item, void *scratch);

/* Run all items, each once, started in the order of their numbers. Returns MW_OK or MW_ERR_INTERRUPTED. */
int64_t parallel_for(int64_t threads, int64_t items, WorkItem work, void *context, char *scratch,
                     size_t scratch_size);

/* Must the current work item stop? To be called about every millisecond. In the thread that called
 * the kernel it calls the function of mw_set_interrupt every 0.1 s; if that interrupts the pass, all
 * threads stop. */
int cancelled(void);

/* GOMP_parallel of the OpenMP library that PyTorch has loaded; NULL if there is none. */
void *find_openmp_parallel(void);

/* Memory aligned to 64 bytes, or NULL. One buffer of at most MAX_KEPT_BYTES is kept for the next
 * call, since the operating system clears new memory page by page. */
enum { MAX_KEPT_BYTES = 64 << 20 };
void *scratch_alloc(size_t size);
void scratch_free(void *memory);

#endif
