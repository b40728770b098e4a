/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU device.
 */
#ifndef GUMBEL_CPU_DEVICE_H
#define GUMBEL_CPU_DEVICE_H

#include "core/backend.h"
#include "cpu/cpu_kernels.h"
#include "cpu/cpu_screen_sums.h"
#include "cpu/host/cpu_pool.h"

typedef struct cpu_device {
    struct gumbel_device base;
    const cpu_kernels *kernels;
    const cpu_screen_sums *screen;
    int32_t threads;
    int32_t fused_tile;
    int32_t logits_tile;
    cpu_pool *pool; /* NULL where there is one thread or an engine's parallel_for */
    gumbel_parallel_for parallel_for; /* NULL: the pool */
    void *parallel_context;
} cpu_device;

/* Make a CPU device; refuses options that it has not. */
gumbel_status cpu_open(const gumbel_device_options *options, gumbel_device **device,
                       gumbel_error *error);

/* Run task(argument, i) for i below the count that is returned: on the device's threads, or the
 * engine's, where that is worth their while, else on the caller's alone. */
int32_t cpu_run_task(cpu_device *cpu, int worth_threads, gumbel_task task, void *argument);

/* The backend's jobs (cpu_run.c, cpu_request.c, cpu_softmax.c, cpu_noise.c, cpu_history.c,
 * cpu_screen_make.c, cpu_screen_verify.c); see backend.h. */
gumbel_status cpu_partial(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_plan *plan, gumbel_summary *summaries, void *workspace,
                          gumbel_error *error);
size_t cpu_most(const gumbel_device *device, const gumbel_limits *limits);
gumbel_status cpu_plan_call(const gumbel_device *device, const gumbel_problem *problem,
                            uint64_t purpose, gumbel_plan *plan, gumbel_error *error);
gumbel_status cpu_explain(const gumbel_device *device, const gumbel_problem *problem,
                          gumbel_text *text, gumbel_error *error);
gumbel_status cpu_sample(gumbel_device *device, const gumbel_problem *problem,
                         const gumbel_plan *plan, const gumbel_output *output, void *workspace,
                         gumbel_error *error);
gumbel_status cpu_process(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_plan *plan, float *processed, int64_t stride,
                          void *workspace, gumbel_error *error);
gumbel_status cpu_store(gumbel_device *device, const gumbel_problem *problem, float *rows,
                        int64_t stride, void *workspace, gumbel_error *error);
gumbel_status cpu_softmax(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_plan *plan, float *probabilities, int64_t stride,
                          void *workspace, gumbel_error *error);
gumbel_status cpu_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                        int64_t noise_stride, gumbel_error *error);
gumbel_status cpu_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                          gumbel_error *error);
gumbel_status cpu_history_start(gumbel_device *device, void *stream, const gumbel_history *history,
                                int64_t batch, const gumbel_slots *slots,
                                const gumbel_token_lists *prompts,
                                const gumbel_token_lists *outputs, gumbel_error *error);
gumbel_status cpu_history_update(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots, const int32_t *tokens,
                                 int64_t token_stride, const int32_t *counts, gumbel_error *error);
gumbel_status cpu_screen_prepare(gumbel_device *device, const gumbel_problem *problem, void *screen,
                                 gumbel_error *error);
gumbel_status cpu_screen_verify(gumbel_device *device, const gumbel_problem *problem,
                                gumbel_error *error);
gumbel_status cpu_multiply(gumbel_device *device, const gumbel_problem *problem,
                           const gumbel_plan *plan, void *workspace, gumbel_error *error);

#endif
