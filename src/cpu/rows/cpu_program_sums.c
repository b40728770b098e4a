/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_program_sums.h"

#include "core/fail.h"
#include "cpu/rows/cpu_truncate.h"

cpu_program_row cpu_make_program_row(const cpu_job *job, int64_t b)
{
    const cpu_stage *stage = job->stage;
    GUMBEL_ASSERT(stage->values && stage->block_maxima);
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

static const float *get_block(const cpu_program_row *row, int64_t block)
{
    return cpu_get_staged_block(row->job, row->b, block);
}

static int has_tokens(const cpu_program_row *row, int64_t block)
{
    return row->maxima[block] > -INFINITY;
}

static int64_t get_token(const cpu_program_row *row, int64_t block, int i)
{
    return row->job->first_tile + block * GUMBEL_BLOCK + i;
}

/* A change of the values of a block: from v to `to`, which may be v. */
typedef void (*change_block)(const cpu_program_row *row, void *how, int64_t block, const float *v,
                             float *to);

/* Changes all blocks with tokens. The row is then copied, if it was not before. */
static void change_blocks(cpu_program_row *row, change_block change, void *how)
{
    for (int64_t first = 0; first < row->blocks; first += GUMBEL_BLOCK) {
        uint64_t bits =
            row->kernels->find_blocks_from(row->maxima + first, row->blocks - first, -FLT_MAX);
        for (; bits != 0; bits &= bits - 1) {
            const int64_t block = first + __builtin_ctzll(bits);
            float *to = cpu_get_own_block(row->job, row->b, block);
            change(row, how, block, get_block(row, block), to);
            row->kernels->find_maxima(to, 1, &row->maxima[block]);
        }
    }
    cpu_use_own_blocks(row->job, row->b);
}

/* ----------------------------------------------------------------------------------- sums ---- */

gumbel_facts cpu_sum_facts(const cpu_program_row *row, int required)
{
    const cpu_values values = cpu_get_program_values(row);
    gumbel_facts facts = {0};
    for (int i = 0; i < values.spans; i++)
        row->kernels->sum_facts(&values.span[i], required, values.largest, &facts);
    return facts;
}

/* ------------------------------------------------------------------------------- removals ---- */

/* Removes values below the bound, and of those that equal it all after the first `tied`. */
static void remove_block_below(const cpu_program_row *row, void *how, int64_t block, const float *v,
                               float *to)
{
    gumbel_cutoff *cutoff = how;
    (void)block;
    row->kernels->filter_block(v, 1.0f, cutoff->bound, to);
    if (cutoff->tied == GUMBEL_TIES_ALL_KEPT)
        return;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        if (to[i] == cutoff->bound && cutoff->tied-- <= 0)
            to[i] = -INFINITY;
}

void cpu_remove_below(cpu_program_row *row, gumbel_cutoff cutoff)
{
    for (int64_t block = 0; block < row->blocks; block++)
        row->maxima[block] = row->maxima[block] < cutoff.bound ? -INFINITY : row->maxima[block];
    change_blocks(row, remove_block_below, &cutoff);
}

/* ------------------------------------------------------------------------------- typical ---- */

/* The row's negative distances, to be selected from 0 downwards. */
static cpu_values get_distances(const cpu_program_row *row, float centre)
{
    cpu_values values = cpu_get_program_values(row);
    values.by_distance = 1;
    values.centre = centre;
    return values;
}

float cpu_select_typical_mass(const cpu_program_row *row, float centre, float typical_p,
                              const gumbel_facts *facts)
{
    cpu_weight bins[CPU_BINS];
    const cpu_values distances = get_distances(row, centre);
    const gumbel_wide needed = gumbel_nucleus_mass(typical_p, facts->mass);
    const gumbel_cutoff none = {-FLT_MAX, GUMBEL_TIES_ALL_KEPT};
    /* If all larger values are within reach, the search ends where that of top_p would. */
    const float lowest = gumbel_nucleus_search_start(distances.largest, facts->mass - needed,
                                                     facts->count, none),
                start = fminf(centre, lowest - distances.largest - centre);
    cpu_selection found = cpu_select_nucleus(row->kernels, &distances, facts->mass, needed,
                                             facts->count, fmaxf(start, -FLT_MAX), bins);
    if (!found.reached)
        found = cpu_select_by_weight(row->kernels, &distances, 1, needed, -FLT_MAX, bins);
    return found.reached ? -found.value : INFINITY;
}

float cpu_select_typical_count(const cpu_program_row *row, float centre, int64_t count)
{
    cpu_weight bins[CPU_BINS];
    const cpu_values distances = get_distances(row, centre);
    const cpu_selection found =
        cpu_select_by_weight(row->kernels, &distances, 0, (gumbel_wide)count, -FLT_MAX, bins);
    return found.reached ? -found.value : INFINITY;
}

typedef struct typical_range {
    float largest, centre, reach;
} typical_range;

static void remove_atypical_block(const cpu_program_row *row, void *how, int64_t block,
                                  const float *v, float *to)
{
    const typical_range *range = how;
    (void)block;
    row->kernels->filter_distances(v, range->largest, range->centre, range->reach, to);
}

void cpu_remove_atypical(cpu_program_row *row, float centre, float reach)
{
    typical_range range = {cpu_get_program_values(row).largest, centre, reach};
    /* Values below the largest one of a block, which is on the lower side, are farther away. */
    for (int64_t block = 0; block < row->blocks; block++)
        if ((row->maxima[block] - range.largest) - centre < -reach)
            row->maxima[block] = -INFINITY;
    change_blocks(row, remove_atypical_block, &range);
}

/* --------------------------------------------------------------------- changes of values ---- */

static void scale_block(const cpu_program_row *row, void *how, int64_t block, const float *v,
                        float *to)
{
    const float *factor = how;
    (void)block;
    row->kernels->filter_block(v, *factor, -INFINITY, to);
}

void cpu_scale_program_row(cpu_program_row *row, float factor)
{
    change_blocks(row, scale_block, &factor);
}

typedef struct smoothing {
    float largest, factor, curve;
} smoothing;

static void smooth_block(const cpu_program_row *row, void *how, int64_t block, const float *v,
                         float *to)
{
    const smoothing *by = how;
    (void)row;
    (void)block;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        to[i] =
            v[i] > -INFINITY ? gumbel_smooth_value(v[i], by->largest, by->factor, by->curve) : v[i];
}

void cpu_smooth_program_row(cpu_program_row *row, float factor, float curve)
{
    smoothing by = {cpu_get_program_values(row).largest, factor, curve};
    change_blocks(row, smooth_block, &by);
}

typedef struct adaptation {
    float largest, inverse_mass, target;
} adaptation;

static void adapt_block(const cpu_program_row *row, void *how, int64_t block, const float *v,
                        float *to)
{
    const adaptation *by = how;
    (void)block;
    row->kernels->adapt_values(v, by->largest, by->inverse_mass, by->target, to);
}

void cpu_adapt_program_row(cpu_program_row *row, float target)
{
    const gumbel_facts facts = cpu_sum_facts(row, GUMBEL_FACT_MASS);
    adaptation by = {cpu_get_program_values(row).largest, gumbel_invert_mass(facts.mass), target};
    change_blocks(row, adapt_block, &by);
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

/* Adds the numbers and masses of a block with excluded tokens. */
static void add_block_exclusion(const cpu_program_row *row, int64_t block, float largest,
                                cpu_exclusion *sums)
{
    const float *v = get_block(row, block);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        if (is_excluded(row, v[i], get_token(row, block, i))) {
            sums->excluded_count++;
            sums->excluded += gumbel_token_mass(gumbel_exp(v[i] - largest));
        } else if (v[i] > -INFINITY) {
            sums->remaining_count++;
            sums->remaining += gumbel_token_mass(gumbel_exp(v[i] - row->excluded_from));
        }
}

/* Adds those of the blocks of a span from `first` on that have no excluded token, up to the next
 * one that has. Returns that one. */
static int64_t add_blocks_without_exclusion(const cpu_program_row *row, const cpu_span *span,
                                            int64_t first, cpu_exclusion *sums)
{
    int64_t end = first;
    gumbel_facts facts = {0};
    while (end < span->blocks && span->block_maxima[end] < row->excluded_from)
        end++;
    const cpu_span run = {span->v + first * GUMBEL_BLOCK, span->block_maxima + first, end - first,
                          1};
    row->kernels->sum_facts(&run, GUMBEL_FACT_MASS, row->excluded_from, &facts);
    sums->remaining_count += facts.count;
    sums->remaining += facts.mass;
    return end;
}

cpu_exclusion cpu_sum_exclusion(const cpu_program_row *row)
{
    const cpu_values values = cpu_get_program_values(row);
    cpu_exclusion sums = {0};
    int64_t first = 0; /* block of the span */
    for (int i = 0; i < values.spans; first += values.span[i++].blocks)
        for (int64_t block = 0; block < values.span[i].blocks; block++) {
            block = add_blocks_without_exclusion(row, &values.span[i], block, &sums);
            if (block < values.span[i].blocks)
                add_block_exclusion(row, first + block, values.largest, &sums);
        }
    return sums;
}

static void shift_block(const cpu_program_row *row, void *how, int64_t block, const float *v,
                        float *to)
{
    const float *shift = how;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        to[i] = is_excluded(row, v[i], get_token(row, block, i)) ? v[i] + *shift : v[i];
}

void cpu_shift_excluded(cpu_program_row *row, float shift)
{
    change_blocks(row, shift_block, &shift);
}
