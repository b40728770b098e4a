/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of a row (docs/maths.md, section 9): descents over the integer keys of its values.
 */
#include "cpu/cpu_truncate.h"

#include "cpu/cpu_kernels.h"

/* Sum the bins of the keys low_key .. high_key. */
static void tally_keys(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                       uint32_t low_key, uint32_t high_key, int shift, cpu_weight *bins)
{
    cpu_tally t = {.low = gumbel_of_key(low_key),
                   .high = gumbel_of_key(high_key),
                   .low_key = low_key,
                   .shift = shift,
                   .by_mass = by_mass,
                   .largest = values->largest,
                   .scale = values->scale,
                   .bins = bins};
    memset(bins, 0, CPU_BINS * sizeof *bins);
    for (int i = 0; i < values->stretches; i++)
        kernels->tally(&values->stretch[i], &t);
}

cpu_landing cpu_descend(const cpu_kernels *kernels, const cpu_values *values, int by_mass,
                        gumbel_wide needed, float floor, cpu_weight *bins)
{
    cpu_landing landing = {0};
    uint32_t low = gumbel_key(floor), high = gumbel_key(values->largest * values->scale);
    while (low <= high) {
        int bits = low == high ? 0 : 32 - __builtin_clz(high - low);
        int shift = bits > CPU_BIN_BITS ? bits - CPU_BIN_BITS : 0;
        int64_t bin = (high - low) >> shift;
        tally_keys(kernels, values, by_mass, low, high, shift, bins);
        for (; bin >= 0; bin--) {
            landing.at = cpu_weight_of(bins[bin]);
            if (landing.above + landing.at >= needed)
                break;
            landing.above += landing.at;
        }
        if (bin < 0)
            return landing;
        low += (uint32_t)bin << shift;
        uint32_t last = low + ((1u << shift) - 1);
        high = last < high ? last : high;
        if (shift == 0) {
            landing.reached = 1;
            landing.value = gumbel_of_key(low);
            return landing;
        }
    }
    return landing;
}

/* A value that the n-th largest is probably not below, to begin with: the n-th largest of the blocks'
 * largest values is a bound, as n tokens reach it; where n is larger, most blocks have several
 * tokens above the lowest of these. */
static float guess_nth(const cpu_kernels *kernels, const cpu_values *values, int64_t n, float floor,
                       cpu_weight *bins)
{
    cpu_values peaks = {.stretch = {values->peaks},
                        .stretches = 1,
                        .largest = values->largest,
                        .scale = values->scale};
    if (n <= values->blocks) {
        cpu_landing bound = cpu_descend(kernels, &peaks, 0, (gumbel_wide)n, floor, bins);
        return bound.reached ? bound.value : floor;
    }
    float lowest = values->largest;
    for (int64_t k = 0; k < values->blocks; k++)
        lowest = fminf(lowest, values->peaks.v[k]);
    return fmaxf(lowest * values->scale, floor);
}

cpu_landing cpu_nth_largest(const cpu_kernels *kernels, const cpu_values *values, int64_t n,
                            float floor, cpu_weight *bins)
{
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
    gumbel_cut own = {k.value, GUMBEL_TIES_STAY};
    if (rules->exact) {
        own.tied = rules->top_k - (int64_t)k.above;
        *excess = (int64_t)k.at - own.tied;
    }
    return own;
}

/* top_p within what `cut` keeps, less `excess` of its tied tokens; jointly, of all that counts. */
static gumbel_cut cut_top_p(const cpu_kernels *kernels, const cpu_values *values,
                            const gumbel_rules *rules, gumbel_cut cut, int64_t excess,
                            cpu_weight *bins)
{
    float m = values->largest, low = rules->joint ? -FLT_MAX : cut.bound;
    gumbel_wide gone = (gumbel_wide)gumbel_token_mass(gumbel_exp(cut.bound - m)) *
                       (uint64_t)(rules->joint ? 0 : excess);
    cpu_weight sum = {0};
    int64_t count = 0;
    for (int i = 0; i < values->stretches; i++)
        count += kernels->weigh(&values->stretch[i], low, m, &sum);
    gumbel_wide mass = cpu_weight_of(sum) - gone, needed = gumbel_nucleus(rules->top_p, mass);
    /* What has no mass ends no nucleus, nor do those whose whole mass may go. */
    float floor = fmaxf(gumbel_nucleus_floor(m, mass - needed, count), m - GUMBEL_MASS_REACH);
    cpu_landing p = cpu_descend(kernels, values, 1, needed, fmaxf(floor, cut.bound), bins);
    if (!p.reached)
        return cut;
    gumbel_cut own = {p.value, GUMBEL_TIES_STAY};
    if (rules->exact)
        own.tied =
            gumbel_ties_needed(needed, p.above, gumbel_token_mass(gumbel_exp(p.value - m)));
    return gumbel_stricter(cut, own);
}

gumbel_cut cpu_find_cut(const cpu_kernels *kernels, const cpu_values *values,
                        const gumbel_rules *rules, cpu_weight *bins)
{
    cpu_values unscaled = *values;
    unscaled.scale = 1.0f;
    gumbel_cut cut = {gumbel_min_p_bound(values->largest, rules->min_p), GUMBEL_TIES_STAY};
    int64_t excess = 0;
    if (rules->top_k > 0)
        cut = cut_top_k(kernels, &unscaled, rules, cut, &excess, bins);
    if (rules->top_p < 1.0f)
        cut = cut_top_p(kernels, &unscaled, rules, cut, excess, bins);
    return cut;
}
