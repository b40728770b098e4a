/* SPDX-License-Identifier: Apache-2.0
 *
 * The entropy of a row, from the sums of program_rules.h: of the tokens that truncation keeps, or
 * of the raw logits.
 */
#include "core/fail.h"
#include "cpu/call/cpu_job.h"
#include "cpu/rows/cpu_outputs.h"

/* Raw logits that are read at a time. */
#define ENTROPY_BLOCKS 16

/* Adds the values of `blocks` blocks, -inf for tokens that do not count. */
static void add_blocks(const cpu_kernels *kernels, const float *v, int64_t blocks, float largest,
                       gumbel_facts *facts)
{
    float maxima[ENTROPY_BLOCKS];
    const cpu_span span = {v, maxima, blocks, 1};
    GUMBEL_ASSERT(blocks <= ENTROPY_BLOCKS);
    kernels->find_maxima(v, blocks, maxima);
    kernels->sum_facts(&span, GUMBEL_FACT_ENTROPY, largest, facts);
}

/* Sums over the z that truncation keeps. */
static gumbel_facts sum_kept_tokens(const cpu_rows_call *r, int64_t b)
{
    const cpu_kernels *kernels = r->job.device->kernels;
    const cpu_row_truncation *own = &r->rows[b];
    const cpu_values values = cpu_get_staged_values(&r->job, b);
    const float largest = values.largest * own->scale;
    gumbel_facts facts = {0};
    if (own->bound == -FLT_MAX && own->tied_end == INT64_MAX && own->scale == 1.0f) {
        for (int i = 0; i < values.spans; i++)
            kernels->sum_facts(&values.span[i], GUMBEL_FACT_ENTROPY, largest, &facts);
        return facts;
    }
    float z[GUMBEL_BLOCK];
    for (int64_t block = 0; block < r->stage.blocks; block++)
        if (cpu_may_block_survive(r, b, block) && cpu_load_kept_block(r, b, block, z) > 0)
            add_blocks(kernels, z, 1, largest, &facts);
    return facts;
}

/* Sums over the raw logits of all tokens that are not padding, whose largest one is given. */
static gumbel_facts sum_raw_logits(const cpu_rows_call *r, int64_t b, float largest)
{
    enum { STEP = ENTROPY_BLOCKS * GUMBEL_BLOCK };
    const cpu_kernels *kernels = r->job.device->kernels;
    const gumbel_problem *p = &r->problem;
    const int given = p->hidden_size == 0;
    const gumbel_dtype dtype = given ? p->logits.dtype : GUMBEL_FLOAT32;
    const int64_t count = p->end_token - p->first_token, size = cpu_get_element_size(dtype);
    const char *row = given ? (const char *)p->logits.data + b * p->logits.stride * size
                            : (const char *)(r->stage.raw_logits + b * r->stage.raw_stride);
    gumbel_facts facts = {0};
    float l[STEP];
    GUMBEL_ASSERT(given || r->stage.raw_logits);
    for (int64_t at = 0; at < count; at += STEP) {
        const int64_t tokens = count - at < STEP ? count - at : STEP;
        const int64_t blocks = (tokens + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK;
        kernels->transform_logits(row + at * size, dtype, (int)tokens, &cpu_identity, l);
        for (int64_t i = tokens; i < blocks * GUMBEL_BLOCK; i++)
            l[i] = -INFINITY;
        add_blocks(kernels, l, blocks, largest, &facts);
    }
    return facts;
}

float cpu_compute_entropy(const cpu_rows_call *r, int64_t b)
{
    gumbel_facts facts;
    GUMBEL_ASSERT(!r->rows[b].flags && !r->rows[b].empty);
    if (r->output->logprobs_of == GUMBEL_RAW) {
        const gumbel_summary raw = cpu_merge_raw_summary(r, b);
        if (raw.flags || !(raw.max_z > -INFINITY))
            return NAN;
        facts = sum_raw_logits(r, b, raw.max_z);
    } else {
        facts = sum_kept_tokens(r, b);
    }
    GUMBEL_ASSERT(facts.count > 0);
    return gumbel_facts_entropy(&facts);
}
