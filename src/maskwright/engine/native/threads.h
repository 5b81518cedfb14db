/* Work on many items by several threads, and memory that outlives a call. */
#ifndef MASKWRIGHT_THREADS_H
#define MASKWRIGHT_THREADS_H

#include <stddef.h>
#include <stdint.h>

/* Does item `item`; no two threads have the same `space` at a time. */
typedef void (*Work)(void *context, int64_t item, void *space);

/* All items, each once, in the order of their numbers as threads become free. */
void run_items(int64_t threads, int64_t items, Work work, void *context, char *spaces,
               size_t space_size);

/* Memory aligned to 64 bytes, or NULL. What was given back is mostly had again. */
void *take_memory(size_t size);
void give_memory(void *memory);

#endif
