/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_row_truncate.h"

#include "core/fail.h"
#include "cpu/rows/cpu_program.h"
#include "cpu/rows/cpu_truncate.h"

/* The global id below which exactly `tied` tokens of row b have the value `bound`. */
static int64_t find_tied_end(const cpu_rows_call *r, int64_t b, float bound, int64_t tied)
{
    const float *maxima = r->stage.block_maxima + b * r->stage.maxima_stride;
    if (tied == GUMBEL_TIES_ALL_KEPT)
        return INT64_MAX;
    GUMBEL_ASSERT(tied >= 0);
    for (int64_t block = 0; block < r->stage.blocks; block++) {
        const float *v = cpu_get_staged_block(&r->job, b, block);
        for (int i = 0; i < GUMBEL_BLOCK && maxima[block] >= bound; i++)
            if (v[i] == bound && tied-- == 0)
                return r->job.first_tile + block * GUMBEL_BLOCK + i;
    }
    return INT64_MAX;
}

static int64_t count_survivors(const cpu_rows_call *r, int64_t b)
{
    float z[GUMBEL_BLOCK];
    int64_t kept = 0;
    for (int64_t block = 0; block < r->stage.blocks; block++)
        if (cpu_may_block_survive(r, b, block))
            kept += cpu_load_kept_block(r, b, block, z);
    return kept;
}

uint32_t cpu_get_row_flags(const cpu_rows_call *r, int64_t b)
{
    uint32_t flags = gumbel_problem_list_flags(&r->problem, b);
    for (int32_t i = 0; i < r->staged; i++)
        flags |= cpu_get_scratch(&r->job, i).summaries[b * r->problem.sampling.num_samples].flags;
    return flags;
}

/* Whether the largest value of row b is +inf or -inf. */
static void check_largest(const cpu_rows_call *r, int64_t b)
{
    cpu_row_truncation *own = &r->rows[b];
    const float largest = cpu_get_staged_values(&r->job, b).largest * own->scale;
    if (largest == INFINITY)
        own->flags = GUMBEL_FLAG_INFINITE;
    own->empty = !(largest > -INFINITY);
}

void cpu_truncate_row(cpu_rows_call *r, int64_t b)
{
    const gumbel_problem *p = &r->problem;
    cpu_weight bins[CPU_BINS];
    cpu_row_truncation *own = &r->rows[b];
    const cpu_row_method method = cpu_choose_row_method(p, b);
    GUMBEL_ASSERT(b >= 0 && b < p->batch);
    *own = (cpu_row_truncation){.scale = method.scale, .bound = -FLT_MAX, .tied_end = INT64_MAX};
    own->flags = cpu_get_row_flags(r, b);
    if (own->flags)
        return;
    check_largest(r, b);
    if (!own->flags && !own->empty && method.runs_program) {
        cpu_run_program(r, b, method.first_rule);
        check_largest(r, b);
    }
    if (own->flags || own->empty)
        return;
    cpu_values values = cpu_get_staged_values(&r->job, b);
    if (!method.runs_program && gumbel_rules_truncate(&method.rules)) {
        gumbel_cutoff cutoff =
            cpu_find_truncation(r->job.device->kernels, &values, &method.rules, bins);
        GUMBEL_ASSERT(cutoff.bound <= values.largest * own->scale || own->scale != 1.0f);
        own->bound = cutoff.bound;
        own->tied_end = find_tied_end(r, b, cutoff.bound, cutoff.tied);
    }
    if (r->output && r->output->kept)
        own->kept = count_survivors(r, b);
}

int cpu_may_block_survive(const cpu_rows_call *r, int64_t b, int64_t block)
{
    return r->stage.block_maxima[b * r->stage.maxima_stride + block] >= r->rows[b].bound;
}

uint64_t cpu_find_survivors(const cpu_rows_call *r, int64_t b, int64_t block)
{
    const float *maxima = r->stage.block_maxima + b * r->stage.maxima_stride;
    return r->job.device->kernels->find_blocks_from(maxima + block, r->stage.blocks - block,
                                                    r->rows[b].bound);
}

int cpu_load_kept_block(const cpu_rows_call *r, int64_t b, int64_t block, float *out)
{
    const cpu_row_truncation *own = &r->rows[b];
    const float *v = cpu_get_staged_block(&r->job, b, block);
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK, ties = own->tied_end - token;
    if (!cpu_may_block_survive(r, b, block)) {
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            out[i] = -INFINITY;
        return 0;
    }
    int kept = r->job.device->kernels->filter_block(v, own->scale, own->bound, out);
    GUMBEL_ASSERT(kept >= 0 && kept <= GUMBEL_BLOCK);
    for (int64_t i = ties > 0 ? ties : 0; i < GUMBEL_BLOCK; i++)
        if (v[i] == own->bound) {
            kept -= out[i] > -INFINITY;
            out[i] = -INFINITY;
        }
    return kept;
}
