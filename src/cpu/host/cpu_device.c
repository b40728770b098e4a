/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cpu/host/cpu_device.h"

#include "core/fail.h"
#include "cpu/host/cpu_dispatch.h"
#include "cpu/cpu_policy.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void cpu_close_device(gumbel_device *device)
{
    cpu_device *cpu = (cpu_device *)device;
    if (cpu->pool)
        cpu_pool_close(cpu->pool);
    free(cpu);
}

void cpu_describe_device(const gumbel_device *device, gumbel_device_info *info)
{
    const cpu_device *cpu = (const cpu_device *)device;
    info->isa = cpu->kernels->isa;
    info->threads = cpu->threads;
    info->tile = cpu->fused_tile;
    snprintf(info->name, sizeof info->name, "cpu");
    cpu_describe_processor(info->description, sizeof info->description);
}

int32_t cpu_run_task(cpu_device *cpu, int worth_threads, gumbel_task task, void *argument)
{
    GUMBEL_ASSERT(cpu->threads >= 1 && cpu->threads <= CPU_THREADS_MAX);
    GUMBEL_ASSERT(cpu->threads == 1 || cpu->pool || cpu->parallel_for);
    if (cpu->threads > 1 && worth_threads) {
        if (cpu->parallel_for) {
            cpu->parallel_for(cpu->parallel_context, cpu->threads, task, argument);
            return cpu->threads;
        }
        if (cpu_pool_run(cpu->pool, task, argument))
            return cpu->threads;
    }
    task(argument, 0);
    return 1;
}

/* The number of CPUs that this process may use. */
static int32_t count_usable_cpus(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > CPU_THREADS_MAX ? CPU_THREADS_MAX : count;
}

/* Reads the ISA that GUMBEL_ISA names; AUTO if it is unset or empty. */
static gumbel_status read_isa_variable(gumbel_isa *isa, gumbel_error *error)
{
    const char *name = getenv("GUMBEL_ISA");
    *isa = GUMBEL_ISA_AUTO;
    if (!name || !*name)
        return GUMBEL_OK;
    for (int i = GUMBEL_ISA_AUTO; i <= GUMBEL_ISA_NEON; i++)
        if (strcmp(name, gumbel_isa_name((gumbel_isa)i)) == 0) {
            *isa = (gumbel_isa)i;
            return GUMBEL_OK;
        }
    return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, "GUMBEL_ISA",
                       "'%.40s' is none of auto, reference, avx2, avx512, neon", name);
}

static gumbel_status choose_kernels(gumbel_isa isa, const cpu_kernels **kernels,
                                    gumbel_error *error)
{
    const char *field = isa == GUMBEL_ISA_AUTO ? "GUMBEL_ISA" : "options.isa";
    if (isa == GUMBEL_ISA_AUTO)
        GUMBEL_FORWARD(read_isa_variable(&isa, error));
    *kernels = isa == GUMBEL_ISA_AUTO ? cpu_find_fastest_kernels() : cpu_find_kernels(isa);
    if (!*kernels)
        return gumbel_fail(
            error, GUMBEL_ERROR_UNSUPPORTED, field,
            "%s is not available: this build, processor or operating system lacks it",
            gumbel_isa_name(isa));
    return GUMBEL_OK;
}

static gumbel_status check_options(const gumbel_device_options *o, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(o->rungs && *o->rungs, error, "options.rungs",
                     "only a CUDA device has this option");
    GUMBEL_REFUSE_IF((int)o->isa < 0 || o->isa > GUMBEL_ISA_NEON, error, "options.isa",
                     "is %d; it must be a gumbel_isa", (int)o->isa);
    GUMBEL_REFUSE_IF(o->threads < 0 || o->threads > CPU_THREADS_MAX, error, "options.threads",
                     "is %d; it must be in 0..%d", (int)o->threads, CPU_THREADS_MAX);
    GUMBEL_REFUSE_IF(o->tile < 0 || o->tile > CPU_TILE_MAX || o->tile % GUMBEL_BLOCK != 0, error,
                     "options.tile", "is %d; it must be a multiple of %d up to %d", (int)o->tile,
                     GUMBEL_BLOCK, CPU_TILE_MAX);
    return GUMBEL_OK;
}

gumbel_status cpu_open_device(const gumbel_device_options *options, const gumbel_backend *backend,
                              gumbel_device **device, gumbel_error *error)
{
    const cpu_kernels *kernels;
    GUMBEL_FORWARD(check_options(options, error));
    GUMBEL_FORWARD(choose_kernels(options->isa, &kernels, error));
    cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "device", "out of memory");
    cpu->base.backend = backend;
    cpu->kernels = kernels;
    cpu->screen = cpu_find_screen_kernel(kernels->isa);
    cpu->nibbles = cpu_find_nibble_kernel(kernels->isa);
    cpu->threads = options->threads ? options->threads : count_usable_cpus();
    cpu->fused_tile = options->tile ? options->tile : CPU_FUSED_TILE;
    cpu->logits_tile = options->tile ? options->tile : CPU_LOGITS_TILE;
    cpu->parallel_for = options->parallel_for;
    cpu->parallel_context = options->parallel_context;
    GUMBEL_ASSERT(cpu->kernels->panel_rows >= 1 && cpu->kernels->panel_rows <= CPU_PANEL_ROWS_MAX);
    GUMBEL_ASSERT(cpu->screen->batch_max == cpu->nibbles->batch_max);
    GUMBEL_ASSERT(cpu->fused_tile % GUMBEL_BLOCK == 0 && cpu->logits_tile % GUMBEL_BLOCK == 0);
    GUMBEL_ASSERT(cpu->fused_tile <= CPU_TILE_MAX && cpu->logits_tile <= CPU_TILE_MAX);
    if (cpu->threads > 1 && !cpu->parallel_for) {
        cpu->pool = cpu_pool_open(cpu->threads, count_usable_cpus());
        if (!cpu->pool) {
            int32_t threads = cpu->threads;
            free(cpu);
            return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "options.threads",
                               "could not start %d threads", (int)threads);
        }
    }
    *device = &cpu->base;
    return GUMBEL_OK;
}
