/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row (docs/maths.md, section 9): descents over the integer keys of its values.
 */
#include "cpu/rows/cpu_truncate.h"

#include "core/fail.h"
#include "cpu/cpu_kernels.h"

/* The slope of bins of equal width between two values; 0 where there are none. */
static float slope_between(float low, float high)
{
    float width = high - low;
    return width > 0x1p-60f && width < 0x1p60f ? (float)(CPU_BINS - 1) / width : 0.0f;
}

/* The least key in low .. high + 1 whose bin is not below `bin`: bins grow with values. */
static uint32_t bin_edge(const cpu_tally *t, uint32_t low, uint32_t high, uint32_t bin)
{
    uint32_t end = high + 1;
    GUMBEL_ASSERT(low <= end);
    while (low < end) {
        uint32_t middle = low + (end - low) / 2;
        if (cpu_tally_bin(t, gumbel_of_key(middle)) < bin)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

/* One step of a descent from keys low .. high: the bin that holds what is needed, or -1. */
static int64_t step_down(const cpu_kernels *kernels, const cpu_values *values, const cpu_tally *t,
                         gumbel_wide needed, cpu_landing *landing)
{
    int64_t bin = CPU_BINS - 1;
    memset(t->bins, 0, CPU_BINS * sizeof *t->bins);
    for (int i = 0; i < values->stretches; i++)
        kernels->tally(&values->stretch[i], t);
    for (; bin >= 0; bin--) {
        landing->at = cpu_weight_of(t->bins[bin]);
        if (landing->above + landing->at >= needed)
            break;
        landing->above += landing->at;
    }
    GUMBEL_ASSERT(bin < CPU_BINS);
    return bin;
}

/* cpu_descend(), or its first step: values from `value` on then reach what was needed, but some of
 * them may be too many. */
static cpu_landing descend(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                           gumbel_wide needed, float floor, int rough, cpu_weight *bins)
{
    cpu_landing landing = {0};
    uint32_t low = gumbel_key(floor), high = gumbel_key(values->largest * values->scale);
    GUMBEL_ASSERT(values->scale >= 0.0f && bins);
    /* Tokens spread better over bins of equal width than over floats; but only the latter end. */
    for (int first = 1; low <= high; first = 0) {
        int bits = low == high ? 0 : 32 - __builtin_clz(high - low);
        cpu_tally t = {.low = gumbel_of_key(low),
                       .high = gumbel_of_key(high),
                       .low_key = low,
                       .shift = bits > CPU_BIN_BITS ? bits - CPU_BIN_BITS : 0,
                       .by_mass = by_mass,
                       .largest = values->largest,
                       .scale = values->scale,
                       .bins = bins};
        t.slope = first && t.shift > 0 ? slope_between(t.low, t.high) : 0.0f;
        t.shift = t.slope > 0.0f ? 0 : t.shift;
        int64_t bin = step_down(kernels, values, &t, needed, &landing);
        if (bin < 0)
            return landing;
        GUMBEL_ASSERT(landing.above < needed && landing.above + landing.at >= needed);
        uint32_t start = bin_edge(&t, low, high, (uint32_t)bin);
        GUMBEL_ASSERT(start >= low && start <= high);
        high = bin_edge(&t, low, high, (uint32_t)bin + 1) - 1;
        low = start;
        if (rough || (t.slope == 0.0f && t.shift == 0)) {
            landing.reached = 1;
            landing.value = gumbel_of_key(low);
            return landing;
        }
    }
    return landing;
}

cpu_landing cpu_descend(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                        gumbel_wide needed, float floor, cpu_weight *bins)
{
    return descend(kernels, values, by_mass, needed, floor, 0, bins);
}

/* A value that the n-th largest is probably not below. The n-th largest of the blocks' largest
 * values is one for sure, as n tokens reach it; where n is larger than there are blocks, most of
 * these have several tokens above the lowest of their largest values. */
static float guess_nth(const cpu_kernels *kernels, const cpu_values *values, int64_t n, float floor,
                       cpu_weight *bins)
{
    cpu_values peaks = {.stretch = {values->peaks},
                        .stretches = 1,
                        .largest = values->largest,
                        .scale = values->scale};
    /* Bins of equal width need a lower end: that of some peaks is mostly low enough. */
    int64_t step = n > values->blocks ? 1 : 1 + values->blocks / CPU_PEAKS_SAMPLED;
    float lowest = values->largest;
    for (int64_t k = 0; k < values->blocks; k += step)
        lowest = fminf(lowest, values->peaks.v[k]);
    lowest = fmaxf(lowest * values->scale, floor);
    if (n > values->blocks)
        return lowest;
    cpu_landing bound = descend(kernels, &peaks, 0, (gumbel_wide)n, lowest, 1, bins);
    if (!bound.reached && lowest > floor)
        bound = descend(kernels, &peaks, 0, (gumbel_wide)n, floor, 1, bins);
    return bound.reached ? bound.value : floor;
}

cpu_landing cpu_nth_largest(const cpu_kernels *kernels, const cpu_values *values, int64_t n,
                            float floor, cpu_weight *bins)
{
    GUMBEL_ASSERT(n > 0);
    float guess = guess_nth(kernels, values, n, floor, bins);
    cpu_landing nth = cpu_descend(kernels, values, 0, (gumbel_wide)n, guess, bins);
    if (nth.reached || !(guess > floor))
        return nth;
    return cpu_descend(kernels, values, 0, (gumbel_wide)n, floor, bins);
}

/* top_k within what `cut` keeps; *excess is how many tokens of the new cut's value go. */
static gumbel_cut cut_top_k(const cpu_kernels *kernels, const cpu_values *values,
                            const gumbel_rules *rules, gumbel_cut cut, int64_t *excess,
                            cpu_weight *bins)
{
    cpu_landing k = cpu_nth_largest(kernels, values, rules->top_k, cut.bound, bins);
    if (!k.reached)
        return cut;
    gumbel_cut own = gumbel_cut_top_k(rules, k.value, (int64_t)k.above);
    if (rules->exact) {
        *excess = (int64_t)k.at - own.tied;
        GUMBEL_ASSERT(own.tied > 0 && *excess >= 0);
    }
    return own;
}

static int64_t weigh(const cpu_kernels *kernels, const cpu_values *values, float bound,
                     gumbel_wide *mass)
{
    cpu_weight sum = {0};
    int64_t count = 0;
    for (int i = 0; i < values->stretches; i++)
        count += kernels->weigh(&values->stretch[i], bound, values->largest, &sum);
    *mass = cpu_weight_of(sum);
    return count;
}

/* A value below which there is probably less than `spare` of mass, as a sample has half of that;
 * not below `floor`. */
static float guess_nucleus(const cpu_kernels *kernels, const cpu_values *values, gumbel_wide spare,
                           float floor, cpu_weight *bins)
{
    cpu_values sample = *values;
    gumbel_wide mass;
    for (int i = 0; i < sample.stretches; i++)
        sample.stretch[i].step = CPU_SAMPLE_STEP;
    weigh(kernels, &sample, floor, &mass);
    /* Too little is spared for a sample to show where it lies. */
    if (spare < mass * CPU_SAMPLE_STEP >> 10)
        return floor;
    spare /= 2 * CPU_SAMPLE_STEP;
    if (mass <= spare)
        return floor;
    cpu_landing guess = descend(kernels, &sample, 1, mass - spare, floor, 1, bins);
    return guess.reached ? guess.value : floor;
}

/* top_p of what min_p and top_k leave it, `behind` less `excess` of its tied tokens, where they
 * keep `cut`; jointly, of all that counts. */
static gumbel_cut cut_top_p(const cpu_kernels *kernels, const cpu_values *values,
                            const gumbel_rules *rules, gumbel_cut behind, int64_t excess,
                            gumbel_cut cut, cpu_weight *bins)
{
    float m = values->largest;
    gumbel_wide mass, gone = gumbel_token_mass(gumbel_exp(behind.bound - m));
    int64_t count = weigh(kernels, values, gumbel_cut_weighed(rules, behind).bound, &mass);
    mass -= rules->joint ? 0 : gone * (uint64_t)excess;
    gumbel_wide needed = gumbel_nucleus(rules->top_p, mass);
    GUMBEL_ASSERT(needed <= mass);
    GUMBEL_ASSERT(rules->top_p > 0.0f && rules->top_p < 1.0f);
    float floor = gumbel_nucleus_begin(m, mass - needed, count, cut), guess = floor;
    if (count >= CPU_SAMPLE_TOKENS)
        guess = guess_nucleus(kernels, values, mass - needed, floor, bins);
    cpu_landing p = cpu_descend(kernels, values, 1, needed, guess, bins);
    if (!p.reached && guess > floor)
        p = cpu_descend(kernels, values, 1, needed, floor, bins);
    if (!p.reached)
        return cut;
    uint64_t each = gumbel_token_mass(gumbel_exp(p.value - m));
    return gumbel_stricter(cut, gumbel_cut_top_p(rules->exact, p.value, needed, p.above, each));
}

gumbel_cut cpu_find_cut(const cpu_kernels *kernels, const cpu_values *values,
                        const gumbel_rules *rules, cpu_weight *bins)
{
    cpu_values unscaled = *values;
    unscaled.scale = 1.0f;
    gumbel_cut behind = gumbel_cut_first(rules, values->largest);
    int64_t excess = 0;
    if (rules->top_k > 0)
        behind = cut_top_k(kernels, &unscaled, rules, behind, &excess, bins);
    gumbel_cut cut = gumbel_cut_others(rules, behind, values->largest);
    if (rules->top_p < 1.0f)
        cut = cut_top_p(kernels, &unscaled, rules, behind, excess, cut, bins);
    return cut;
}
