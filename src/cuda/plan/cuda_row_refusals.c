/* SPDX-License-Identifier: Apache-2.0
 *
 * Why the rungs of rows (cuda_row_rungs.c) refuse a call, which the rung's capabilities do not say.
 */
#include "core/row_program.h"
#include "cuda/plan/cuda_refusals.h"

const char *cuda_cluster_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    (void)offered;
    if (!cuda->truncated_cluster)
        return "the GPU has no clusters";
    if (cuda_cluster_bytes(p) > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "an eighth of a row exceeds the shared memory of a CTA";
    return NULL;
}

const char *cuda_draw_allowed_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                      uint32_t offered)
{
    (void)cuda, (void)offered;
    return cuda_refuse_many_allowed(p);
}

const char *cuda_pivots_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    (void)offered;
    return cuda_count_pivot_splits(p) <= cuda->multiprocessors
               ? NULL
               : "a row has more splits than the GPU has multiprocessors";
}

static const char *refuse_large_blocks(const cuda_device *cuda, const gumbel_problem *p)
{
    const int has_most = cuda->shared_bytes - CUDA_RESERVED_BYTES >= CUDA_BLOCKS_BYTES_MAX;
    const int64_t most = has_most ? CUDA_BLOCKS_BYTES_MAX : CUDA_DEFAULT_SHARED_BYTES;
    return cuda_blocks_bytes(cuda_blocks_of(p)) <= most
               ? NULL
               : "the block maxima of a row exceed the shared memory of a CTA";
}

const char *cuda_blocks_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    const char *refusal = cuda_cluster_refuses(cuda, p, offered);
    if (!refusal)
        refusal = refuse_large_blocks(cuda, p);
    if (refusal)
        return refusal;
    if (!(offered & CUDA_OUTPUT_BLOCK_MAXIMA) && p->batch < CUDA_BLOCKS_ROWS_MIN)
        return "fewer than 17 rows, and no product that stores block maxima";
    return NULL;
}

const char *cuda_bounded_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    const char *refusal = cuda_blocks_refuse(cuda, p, offered);
    if (refusal)
        return refusal;
    if (!(offered & CUDA_OUTPUT_SUBTILES))
        return "no product that stores only logits above a bound";
    if (p->weight.rows == 0 ||
        !cuda_bounds_are_faster(p->batch, cuda_blocks_of(p) / cuda->multiprocessors))
        return "not 5 to 128 rows with three tiles for each multiprocessor";
    return NULL;
}

/* Whether the call has parameters for a rule, which rows may still turn off. */
static int has_parameters(const gumbel_problem *p, uint8_t rule)
{
    const gumbel_truncation *t = &p->truncation;
    const gumbel_programs *q = &p->programs;
    const void *const parameters[] = {[GUMBEL_PROGRAM_TOP_K] = t->top_k.data,
                                      [GUMBEL_PROGRAM_MIN_P] = t->min_p.data,
                                      [GUMBEL_PROGRAM_TOP_P] = t->top_p.data,
                                      [GUMBEL_PROGRAM_TYPICAL_P] = q->typical_p.data,
                                      [GUMBEL_PROGRAM_TOP_N_SIGMA] = q->top_n_sigma.data,
                                      [GUMBEL_PROGRAM_EPSILON] = q->epsilon.data,
                                      [GUMBEL_PROGRAM_ETA] = q->eta.data,
                                      [GUMBEL_PROGRAM_TOP_A] = q->top_a.data,
                                      [GUMBEL_PROGRAM_P_LESS] = q->rules, /* always on */
                                      [GUMBEL_PROGRAM_SURPRISE] = q->surprise.data,
                                      [GUMBEL_PROGRAM_XTC] = q->xtc_probability.data,
                                      [GUMBEL_PROGRAM_SMOOTHING] = q->smoothing_factor.data,
                                      [GUMBEL_PROGRAM_ADAPTIVE_P] = q->adaptive_target.data,
                                      [GUMBEL_PROGRAM_TEMPERATURE] = q->temperature_range.data};
    return parameters[rule] != NULL;
}

/* Whether a program begins with TOP_K or MIN_P, at most after a TEMPERATURE that is not dynamic. */
static int begins_with_largest(const gumbel_problem *p, const uint8_t *rules)
{
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && rules[i] != GUMBEL_PROGRAM_END; i++)
        if (has_parameters(p, rules[i]))
            return rules[i] == GUMBEL_PROGRAM_TOP_K || rules[i] == GUMBEL_PROGRAM_MIN_P;
    return 0;
}

static const char *refuse_other_programs(const gumbel_problem *p)
{
    for (int32_t i = 0; i < p->programs.count; i++)
        if (begins_with_largest(p, p->programs.rules + i * GUMBEL_PROGRAM_LENGTH))
            return NULL;
    return "no program begins with top_k or min_p";
}

const char *cuda_program_blocks_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                       uint32_t offered)
{
    const char *refusal = cuda_blocks_refuse(cuda, p, offered);
    return refusal ? refusal : refuse_other_programs(p);
}

/* Rows that a cooperative launch serves at the same time. */
static int64_t count_grid_rows(const cuda_device *cuda, const gumbel_problem *p)
{
    return cuda_grid_rows(cuda_grid_bytes(p), cuda->multiprocessors, cuda->shared_bytes);
}

const char *cuda_grid_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    (void)offered;
    if (!cuda->truncated_grid)
        return "the GPU has no cooperative launches";
    if (cuda_grid_bytes(p) > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "a sixteenth of a row exceeds the shared memory of a CTA";
    return count_grid_rows(cuda, p) > 0 ? NULL : "the GPU runs fewer than 16 CTAs at the same time";
}

const char *cuda_blocks_grid_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                    uint32_t offered)
{
    const char *refusal = cuda_grid_refuses(cuda, p, offered);
    if (!refusal)
        refusal = refuse_large_blocks(cuda, p);
    if (refusal)
        return refusal;
    return offered & CUDA_OUTPUT_BLOCK_MAXIMA || p->batch > count_grid_rows(cuda, p)
               ? NULL
               : "a cooperative launch serves all rows at the same time";
}

const char *cuda_program_blocks_grid_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                            uint32_t offered)
{
    const char *refusal = cuda_blocks_grid_refuse(cuda, p, offered);
    return refusal ? refusal : refuse_other_programs(p);
}

/* Candidates serve rows with a top_k of at most 256 or a min_p; one CTA serves all others, which
 * takes a hundred times as long. A plan does not know the parameters of rows, so `grid` precedes.
 */
const char *cuda_two_pass_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                  uint32_t offered)
{
    (void)p, (void)offered;
    return CUDA_TWO_PASS_BYTES <= cuda->shared_bytes - CUDA_RESERVED_BYTES
               ? NULL
               : "candidates exceed the shared memory of a CTA";
}

/* Whether a program has at most one rule besides TEMPERATURE, and floats can decide by the rule. */
static int has_single_rule(const gumbel_problem *p, const uint8_t *rules)
{
    int count = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && rules[i] != GUMBEL_PROGRAM_END; i++) {
        if (!has_parameters(p, rules[i]))
            continue;
        const int decides = rules[i] == GUMBEL_PROGRAM_TYPICAL_P ||
                            rules[i] == GUMBEL_PROGRAM_TOP_P ||
                            gumbel_threshold_facts((gumbel_program_rule)rules[i]) >= 0;
        count += decides ? 1 : 2;
    }
    return count <= 1;
}

/* Why pivots cannot serve the programs of a call; NULL if they can. */
static const char *refuse_pivots_of_programs(const cuda_device *cuda, const gumbel_problem *p,
                                             uint32_t offered)
{
    const char *refusal = cuda_pivots_refuse(cuda, p, offered);
    if (refusal)
        return refusal;
    if (!(offered & CUDA_OUTPUT_DRAWS) && p->batch < CUDA_PROGRAM_PIVOT_ROWS_MIN)
        return "fewer than 8 rows, and no product that draws";
    if (p->programs.min_keep.data)
        return "min_keep is set";
    for (int32_t i = 0; i < p->programs.count; i++)
        if (!has_single_rule(p, p->programs.rules + i * GUMBEL_PROGRAM_LENGTH))
            return "a program has two rules besides the temperature, or one that changes values";
    return NULL;
}

const char *cuda_program_pivots_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                       uint32_t offered)
{
    const char *refusal = cuda_cluster_refuses(cuda, p, offered);
    return refusal ? refusal : refuse_pivots_of_programs(cuda, p, offered);
}

const char *cuda_program_pivots_grid_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                            uint32_t offered)
{
    const char *refusal = cuda_grid_refuses(cuda, p, offered);
    return refusal ? refusal : refuse_pivots_of_programs(cuda, p, offered);
}
