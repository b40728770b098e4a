/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU device: its kernels, its threads, its tile sizes.
 */
#ifndef GUMBEL_CPU_DEVICE_H
#define GUMBEL_CPU_DEVICE_H

#include "core/backend.h"
#include "cpu/cpu_kernels.h"
#include "cpu/cpu_screen_kernel.h"
#include "cpu/host/cpu_pool.h"

#include <stdatomic.h>

typedef struct cpu_device {
    struct gumbel_device base;
    const cpu_kernels *kernels;
    const cpu_screen_kernel *screen, *nibbles; /* of equal batch_max */
    int32_t threads;
    int32_t fused_tile;
    int32_t logits_tile;
    cpu_pool *pool;                   /* NULL with one thread, or with the caller's parallel_for */
    gumbel_parallel_for parallel_for; /* NULL: the pool */
    void *parallel_context;
} cpu_device;

/* Opens a CPU device for this backend; returns an error if an option is not available. */
gumbel_status cpu_open_device(const gumbel_device_options *options, const gumbel_backend *backend,
                              gumbel_device **device, gumbel_error *error);

/* Backend functions (backend.h). */
void cpu_close_device(gumbel_device *device);
void cpu_describe_device(const gumbel_device *device, gumbel_device_info *info);

/* Runs task(argument, i) for each i in 0 .. n - 1, and returns n. If `worth_threads`, n is the
 * number of threads, of the device or of the caller's parallel_for; else n is 1, and the task runs
 * on the calling thread. */
int32_t cpu_run_task(cpu_device *cpu, int worth_threads, gumbel_task task, void *argument);

/* Claims the next item for the calling thread; returns 0 if none is left. */
static inline int cpu_claim_item(_Atomic int64_t *next, int64_t items, int64_t *item)
{
    *item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return *item < items;
}

#endif
