/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncation of a row (docs/maths.md, section 9), by selection over the integer keys of its values.
 */
#include "cpu/rows/cpu_truncate.h"

#include "core/fail.h"
#include "cpu/cpu_kernels.h"
#include "cpu/rows/cpu_few_values.h"

/* The slope of bins of equal width between two values; 0 if it is not usable. */
static float find_bin_slope(float low, float high)
{
    float width = high - low;
    return width > 0x1p-60f && width < 0x1p60f ? (float)(CPU_BINS - 1) / width : 0.0f;
}

/* The lowest key in low .. high + 1 whose bin is at least `bin`. Bins ascend with values. */
static uint32_t find_bin_edge(const cpu_histogram *h, uint32_t low, uint32_t high, uint32_t bin)
{
    uint32_t end = high + 1;
    GUMBEL_ASSERT(low <= end);
    while (low < end) {
        uint32_t middle = low + (end - low) / 2;
        if (cpu_find_bin(h, gumbel_value_of_key(middle)) < bin)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

/* Fills the bins and returns the bin in which the weight from above reaches `needed`, or -1. */
static int64_t select_bin(const cpu_kernels *kernels, const cpu_values *values,
                          const cpu_histogram *h, gumbel_wide needed, cpu_selection *selection)
{
    int64_t bin = CPU_BINS - 1;
    memset(h->bins, 0, CPU_BINS * sizeof *h->bins);
    for (int i = 0; i < values->spans; i++)
        kernels->add_to_bins(&values->span[i], h);
    for (; bin >= 0; bin--) {
        if ((h->bins[bin].high | h->bins[bin].low) == 0)
            continue; /* most bins are empty if few values are in range */
        selection->at = cpu_join_weight(h->bins[bin]);
        if (selection->above + selection->at >= needed)
            break;
        selection->above += selection->at;
    }
    GUMBEL_ASSERT(bin < CPU_BINS);
    return bin;
}

/* cpu_select_by_weight(), or its first step: the weight of the values from `value` on then reaches
 * `needed`, but some of them may be too many. */
static cpu_selection select_value(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                                  gumbel_wide needed, float min_value, int first_step_only,
                                  cpu_weight *bins)
{
    cpu_selection selection = {0};
    uint32_t low = gumbel_key_of_value(min_value),
             high =
                 gumbel_key_of_value(values->by_distance ? 0.0f : values->largest * values->scale);
    GUMBEL_ASSERT(values->scale >= 0.0f && bins);
    /* Bins of equal width spread tokens better than bins of keys; only the latter ones
     * terminate. */
    for (int first = 1; low <= high; first = 0) {
        int bits = low == high ? 0 : 32 - __builtin_clz(high - low);
        cpu_histogram h = {.low = gumbel_value_of_key(low),
                           .high = gumbel_value_of_key(high),
                           .low_key = low,
                           .shift = bits > CPU_BIN_BITS ? bits - CPU_BIN_BITS : 0,
                           .by_mass = by_mass,
                           .largest = values->largest,
                           .scale = values->scale,
                           .by_distance = values->by_distance,
                           .centre = values->centre,
                           .bins = bins};
        h.slope = first && h.shift > 0 ? find_bin_slope(h.low, h.high) : 0.0f;
        h.shift = h.slope > 0.0f ? 0 : h.shift;
        int64_t bin = select_bin(kernels, values, &h, needed, &selection);
        if (bin < 0)
            return selection;
        GUMBEL_ASSERT(selection.above < needed && selection.above + selection.at >= needed);
        uint32_t start = find_bin_edge(&h, low, high, (uint32_t)bin);
        GUMBEL_ASSERT(start >= low && start <= high);
        high = find_bin_edge(&h, low, high, (uint32_t)bin + 1) - 1;
        low = start;
        if (first_step_only || (h.slope == 0.0f && h.shift == 0)) {
            selection.reached = 1;
            selection.value = gumbel_value_of_key(low);
            return selection;
        }
    }
    return selection;
}

cpu_selection cpu_select_by_weight(const cpu_kernels *kernels, const cpu_values *values,
                                   int by_mass, gumbel_wide needed, float min_value,
                                   cpu_weight *bins)
{
    if (values->few > 0)
        return cpu_select_among_few(values, by_mass, needed, min_value);
    return select_value(kernels, values, by_mass, needed, min_value, 0, bins);
}

/* A value that the n-th largest probably reaches. The n-th largest block maximum surely is one, as
 * n tokens reach it. If n exceeds the number of blocks, most blocks have several tokens above the
 * lowest block maximum. */
static float guess_nth_largest(const cpu_kernels *kernels, const cpu_values *values, int64_t n,
                               float min_value, cpu_weight *bins)
{
    if (cpu_guesses_nth_largest(n, values->blocks))
        return cpu_guess_nth_largest(values->block_maxima.v, values->blocks, n, values->scale,
                                     min_value);
    cpu_values maxima = {.span = {values->block_maxima},
                         .spans = 1,
                         .largest = values->largest,
                         .scale = values->scale};
    /* Bins of equal width require a lower bound: the lowest of a sample of block maxima is mostly
     * low enough. */
    int64_t step = n > values->blocks ? 1 : 1 + values->blocks / CPU_MAXIMA_SAMPLED;
    float lowest = values->largest;
    for (int64_t k = 0; k < values->blocks; k += step)
        lowest = fminf(lowest, values->block_maxima.v[k]);
    lowest = fmaxf(lowest * values->scale, min_value);
    if (n > values->blocks)
        return lowest;
    cpu_selection bound = select_value(kernels, &maxima, 0, (gumbel_wide)n, lowest, 1, bins);
    if (!bound.reached && lowest > min_value)
        bound = select_value(kernels, &maxima, 0, (gumbel_wide)n, min_value, 1, bins);
    return bound.reached ? bound.value : min_value;
}

/* Copies of the largest values of a row, in a few blocks. */
typedef struct collected_values {
    float v[CPU_COLLECTED];
    float maxima[CPU_COLLECTED / GUMBEL_BLOCK];
    cpu_values values; /* without block_maxima */
} collected_values;

/* The values of a row from `bound` on: copies at `into` if there is room, else the row's. */
static const cpu_values *collect_largest(const cpu_kernels *kernels, const cpu_values *values,
                                         float bound, collected_values *into)
{
    int count = 0;
    GUMBEL_ASSERT(!values->by_distance && bound >= -FLT_MAX);
    if (values->scale != 1.0f)
        return values;
    for (int i = 0; i < values->spans; i++)
        if (!kernels->collect_values(&values->span[i], bound, into->v, CPU_COLLECTED, &count))
            return values;
    const int64_t blocks = (count + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK;
    for (int i = count; i < blocks * GUMBEL_BLOCK; i++)
        into->v[i] = -INFINITY;
    kernels->find_maxima(into->v, blocks, into->maxima);
    into->values = (cpu_values){.span = {{into->v, into->maxima, blocks, 1}},
                                .spans = 1,
                                .blocks = blocks,
                                .few = count <= CPU_FEW ? count : 0,
                                .largest = values->largest,
                                .scale = 1.0f};
    return &into->values;
}

cpu_selection cpu_select_nth_largest(const cpu_kernels *kernels, const cpu_values *values,
                                     int64_t n, float min_value, cpu_weight *bins)
{
    GUMBEL_ASSERT(n > 0);
    collected_values collected;
    float guess = guess_nth_largest(kernels, values, n, min_value, bins);
    const cpu_values *largest = collect_largest(kernels, values, guess, &collected);
    cpu_selection nth = cpu_select_by_weight(kernels, largest, 0, (gumbel_wide)n, guess, bins);
    if (nth.reached || !(guess > min_value))
        return nth;
    return cpu_select_by_weight(kernels, values, 0, (gumbel_wide)n, min_value, bins);
}

/* Truncates by top_k within `cutoff`; *excess is the number of tokens of the new bound that are
 * removed. */
static gumbel_cutoff truncate_top_k(const cpu_kernels *kernels, const cpu_values *values,
                                    const gumbel_rules *rules, gumbel_cutoff cutoff,
                                    int64_t *excess, cpu_weight *bins)
{
    cpu_selection k = cpu_select_nth_largest(kernels, values, rules->top_k, cutoff.bound, bins);
    if (!k.reached)
        return cutoff;
    gumbel_cutoff own = gumbel_cutoff_by_top_k(rules, k.value, (int64_t)k.above);
    if (rules->exact) {
        *excess = (int64_t)k.at - own.tied;
        GUMBEL_ASSERT(own.tied > 0 && *excess >= 0);
    }
    return own;
}

int64_t cpu_sum_row_masses(const cpu_kernels *kernels, const cpu_values *values, float bound,
                           float largest, gumbel_wide *mass)
{
    cpu_weight sum = {0};
    int64_t count = 0;
    for (int i = 0; i < values->spans; i++)
        count += kernels->sum_masses(&values->span[i], bound, largest, &sum);
    *mass = cpu_join_weight(sum);
    return count;
}

int64_t cpu_count_row_above(const cpu_kernels *kernels, const cpu_values *values, float scale,
                            float bound)
{
    int64_t count = 0;
    for (int i = 0; i < values->spans; i++)
        count += kernels->count_above(&values->span[i], scale, bound);
    return count;
}

/* A value, at least `min_value`, below which the mass is probably less than `spare`: half as much
 * is below it in a sample. With by_distance, a negative distance. */
static float guess_nucleus(const cpu_kernels *kernels, const cpu_values *values, gumbel_wide spare,
                           float min_value, cpu_weight *bins)
{
    cpu_values sample = *values;
    gumbel_wide mass;
    for (int i = 0; i < sample.spans; i++)
        sample.span[i].step = CPU_SAMPLE_STEP;
    cpu_sum_row_masses(kernels, &sample, values->by_distance ? -FLT_MAX : min_value, sample.largest,
                       &mass);
    /* `spare` is too small to be located by a sample. */
    if (spare < mass * CPU_SAMPLE_STEP >> 10)
        return min_value;
    spare /= 2 * CPU_SAMPLE_STEP;
    if (mass <= spare)
        return min_value;
    cpu_selection guess = select_value(kernels, &sample, 1, mass - spare, min_value, 1, bins);
    return guess.reached ? guess.value : min_value;
}

cpu_selection cpu_select_nucleus(const cpu_kernels *kernels, const cpu_values *values,
                                 gumbel_wide mass, gumbel_wide needed, int64_t count,
                                 float min_value, cpu_weight *bins)
{
    float guess = min_value;
    GUMBEL_ASSERT(needed <= mass);
    if (count >= CPU_SAMPLE_TOKENS)
        guess = guess_nucleus(kernels, values, mass - needed, min_value, bins);
    cpu_selection p = cpu_select_by_weight(kernels, values, 1, needed, guess, bins);
    if (!p.reached && guess > min_value)
        p = cpu_select_by_weight(kernels, values, 1, needed, min_value, bins);
    return p;
}

/* Truncates by top_p, within `cutoff`. The mass is that of `earlier`, which min_p and top_k keep,
 * less `excess` of its tied tokens; of all tokens for a joint top_p. */
static gumbel_cutoff truncate_top_p(const cpu_kernels *kernels, const cpu_values *values,
                                    const gumbel_rules *rules, gumbel_cutoff earlier,
                                    int64_t excess, gumbel_cutoff cutoff, cpu_weight *bins)
{
    float m = values->largest;
    gumbel_wide mass, gone = gumbel_token_mass(gumbel_exp(earlier.bound - m));
    int64_t count = cpu_sum_row_masses(kernels, values,
                                       gumbel_cutoff_before_top_p(rules, earlier).bound, m, &mass);
    mass -= rules->joint ? 0 : gone * (uint64_t)excess;
    gumbel_wide needed = gumbel_nucleus_mass(rules->top_p, mass);
    GUMBEL_ASSERT(rules->top_p > 0.0f && rules->top_p < 1.0f);
    float min_value = gumbel_nucleus_search_start(m, mass - needed, count, cutoff);
    cpu_selection p = cpu_select_nucleus(kernels, values, mass, needed, count, min_value, bins);
    if (!p.reached)
        return cutoff;
    uint64_t each = gumbel_token_mass(gumbel_exp(p.value - m));
    return gumbel_stricter_cutoff(
        cutoff, gumbel_cutoff_by_top_p(rules->exact, p.value, needed, p.above, each));
}

gumbel_cutoff cpu_find_truncation(const cpu_kernels *kernels, const cpu_values *values,
                                  const gumbel_rules *rules, cpu_weight *bins)
{
    cpu_values unscaled = *values;
    unscaled.scale = 1.0f;
    gumbel_cutoff earlier = gumbel_cutoff_before_top_k(rules, values->largest);
    int64_t excess = 0;
    if (rules->top_k > 0)
        earlier = truncate_top_k(kernels, &unscaled, rules, earlier, &excess, bins);
    gumbel_cutoff cutoff = gumbel_cutoff_without_top_p(rules, earlier, values->largest);
    collected_values collected;
    const cpu_values *summed = &unscaled;
    if (rules->top_p < 1.0f && rules->top_k > 0 && !rules->joint)
        summed = collect_largest(kernels, &unscaled, earlier.bound, &collected);
    if (rules->top_p < 1.0f)
        cutoff = truncate_top_p(kernels, summed, rules, earlier, excess, cutoff, bins);
    return cutoff;
}
