/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_program_sums.h"

#include "core/fail.h"

/* Bits of a distance that one step of its selection determines. */
#define STEP_BITS 11
#define STEP_BINS (1 << STEP_BITS)

cpu_program_row cpu_make_program_row(const cpu_job *job, int64_t b)
{
    const cpu_stage *stage = job->stage;
    GUMBEL_ASSERT(!stage->in_place && stage->block_maxima);
    return (cpu_program_row){.job = job,
                             .kernels = job->device->kernels,
                             .b = b,
                             .blocks = stage->blocks,
                             .maxima = stage->block_maxima + b * stage->maxima_stride};
}

cpu_values cpu_get_program_values(const cpu_program_row *row)
{
    return cpu_get_staged_values(row->job, row->b);
}

/* The values of a block, which may be overwritten. */
static float *get_block(const cpu_program_row *row, int64_t block)
{
    return (float *)(uintptr_t)cpu_get_staged_block(row->job, row->b, block);
}

static int has_tokens(const cpu_program_row *row, int64_t block)
{
    return row->maxima[block] > -INFINITY;
}

static void update_maximum(cpu_program_row *row, int64_t block)
{
    row->kernels->find_maxima(get_block(row, block), 1, &row->maxima[block]);
}

static int64_t get_token(const cpu_program_row *row, int64_t block, int i)
{
    return row->job->first_tile + block * GUMBEL_BLOCK + i;
}

/* ----------------------------------------------------------------------------------- sums ---- */

/* e[i] = exp(v[i] - largest), and 0 for values far below it. */
static void exponentiate_block(const cpu_program_row *row, const float *v, float largest, float *e)
{
    memcpy(e, v, GUMBEL_BLOCK * sizeof *e);
    row->kernels->exponentiate_row(e, GUMBEL_BLOCK, largest);
}

static void add_block_facts(const cpu_program_row *row, int64_t block, int required, float largest,
                            gumbel_facts *facts)
{
    const float *v = get_block(row, block);
    float e[GUMBEL_BLOCK] = {0}, squared[GUMBEL_BLOCK] = {0};
    if (required & ~GUMBEL_FACT_SPREAD)
        exponentiate_block(row, v, largest, e);
    if (required & GUMBEL_FACT_SQUARED) {
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            squared[i] = 2.0f * (v[i] - largest);
        row->kernels->exponentiate_row(squared, GUMBEL_BLOCK, 0.0f);
    }
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        if (v[i] > -INFINITY)
            gumbel_facts_add(facts, required, v[i], largest, e[i], squared[i]);
}

gumbel_facts cpu_sum_facts(const cpu_program_row *row, int required)
{
    const float largest = cpu_get_program_values(row).largest;
    gumbel_facts facts = {0};
    for (int64_t block = 0; block < row->blocks; block++)
        if (has_tokens(row, block))
            add_block_facts(row, block, required, largest, &facts);
    return facts;
}

/* ------------------------------------------------------------------------------- removals ---- */

void cpu_remove_below(cpu_program_row *row, gumbel_cutoff cutoff)
{
    int64_t tied = cutoff.tied;
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block))
            continue;
        if (row->maxima[block] < cutoff.bound) {
            row->maxima[block] = -INFINITY;
            continue;
        }
        float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (v[i] < cutoff.bound || (v[i] == cutoff.bound && tied-- <= 0))
                v[i] = -INFINITY;
        update_maximum(row, block);
    }
}

/* ------------------------------------------------------------------------------- typical ---- */

/* Adds the weights of the tokens whose distance has the bits `prefix` above `shift` + STEP_BITS to
 * the bins of the next STEP_BITS bits. */
static void add_distances(const cpu_program_row *row, float largest, float centre, int by_mass,
                          int shift, uint32_t prefix, gumbel_wide *bins)
{
    float e[GUMBEL_BLOCK] = {0};
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block))
            continue;
        const float *v = get_block(row, block);
        if (by_mass)
            exponentiate_block(row, v, largest, e);
        for (int i = 0; i < GUMBEL_BLOCK; i++) {
            const uint64_t bits =
                gumbel_bits_of(gumbel_typical_distance(v[i], largest, centre)) >> shift;
            if (v[i] > -INFINITY && bits >> STEP_BITS == prefix)
                bins[bits % STEP_BINS] += by_mass ? gumbel_token_mass(e[i]) : 1;
        }
    }
}

float cpu_select_typical_distance(const cpu_program_row *row, float centre, gumbel_wide needed,
                                  int by_mass)
{
    /* Distances are at least 0, so that their bits are ordered as they are. */
    static const int shifts[] = {2 * STEP_BITS, STEP_BITS, 0};
    const float largest = cpu_get_program_values(row).largest;
    gumbel_wide above = 0;
    uint32_t prefix = 0;
    for (int step = 0; step < 3; step++) {
        gumbel_wide bins[STEP_BINS] = {0};
        uint32_t bin = 0;
        add_distances(row, largest, centre, by_mass, shifts[step], prefix, bins);
        while (bin < STEP_BINS && above + bins[bin] < needed)
            above += bins[bin++];
        if (bin == STEP_BINS)
            return INFINITY;
        prefix = prefix << STEP_BITS | bin;
    }
    return gumbel_float_of(prefix);
}

void cpu_remove_atypical(cpu_program_row *row, float centre, float reach)
{
    const float largest = cpu_get_program_values(row).largest;
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block))
            continue;
        float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (gumbel_typical_distance(v[i], largest, centre) > reach)
                v[i] = -INFINITY;
        update_maximum(row, block);
    }
}

/* --------------------------------------------------------------------- changes of values ---- */

void cpu_scale_program_row(cpu_program_row *row, float factor)
{
    for (int64_t block = 0; block < row->blocks; block++)
        if (has_tokens(row, block)) {
            row->kernels->scale_row(get_block(row, block), GUMBEL_BLOCK, factor);
            row->maxima[block] *= factor; /* the largest product is that of the largest value */
        }
}

void cpu_smooth_program_row(cpu_program_row *row, float factor, float curve)
{
    const float largest = cpu_get_program_values(row).largest;
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block))
            continue;
        float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (v[i] > -INFINITY)
                v[i] = gumbel_smooth_value(v[i], largest, factor, curve);
        update_maximum(row, block);
    }
}

/* ------------------------------------------------------------------------------------ XTC ---- */

int64_t cpu_find_smallest_from(const cpu_program_row *row, float bound, float *smallest)
{
    int64_t count = 0;
    *smallest = INFINITY;
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block) || row->maxima[block] < bound)
            continue;
        const float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (v[i] >= bound) {
                count++;
                *smallest = fminf(*smallest, v[i]);
            }
    }
    return count;
}

void cpu_set_exclusion(cpu_program_row *row, float from, int exact)
{
    row->excluded_from = from;
    row->excluded_end = INT64_MIN;
    for (int64_t block = row->blocks - 1; exact && block >= 0; block--) {
        if (!has_tokens(row, block) || row->maxima[block] < from)
            continue;
        const float *v = get_block(row, block);
        for (int i = GUMBEL_BLOCK - 1; i >= 0; i--)
            if (v[i] == from) {
                row->excluded_end = get_token(row, block, i);
                return;
            }
    }
}

static int is_excluded(const cpu_program_row *row, float v, int64_t token)
{
    return v > row->excluded_from || (v == row->excluded_from && token < row->excluded_end);
}

int cpu_is_excluded(const cpu_program_row *row, int64_t token)
{
    const int64_t at = token - row->job->first_tile;
    if (!has_tokens(row, at / GUMBEL_BLOCK))
        return 0;
    return is_excluded(row, get_block(row, at / GUMBEL_BLOCK)[at % GUMBEL_BLOCK], token);
}

cpu_exclusion cpu_sum_exclusion(const cpu_program_row *row)
{
    const float largest = cpu_get_program_values(row).largest;
    float remaining[GUMBEL_BLOCK], e[GUMBEL_BLOCK];
    cpu_exclusion sums = {0};
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block))
            continue;
        const float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++) {
            const int excluded = is_excluded(row, v[i], get_token(row, block, i));
            remaining[i] = excluded ? -INFINITY : v[i];
            sums.remaining_count += remaining[i] > -INFINITY;
            sums.excluded_count += excluded;
            if (excluded)
                sums.excluded += gumbel_token_mass(gumbel_exp(v[i] - largest));
        }
        exponentiate_block(row, remaining, row->excluded_from, e);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            sums.remaining += gumbel_token_mass(e[i]);
    }
    return sums;
}

void cpu_shift_excluded(cpu_program_row *row, float shift)
{
    for (int64_t block = 0; block < row->blocks; block++) {
        if (!has_tokens(row, block) || row->maxima[block] < row->excluded_from)
            continue;
        float *v = get_block(row, block);
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            if (is_excluded(row, v[i], get_token(row, block, i)))
                v[i] += shift;
        update_maximum(row, block);
    }
}
