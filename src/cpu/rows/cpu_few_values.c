/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_few_values.h"

#include "core/fail.h"

/* Keys that loops take at a time, so that compilers use vectors. */
enum { KEY_LANES = 16 };

/* gumbel_key_of_value() as an integer with a sign, whose comparisons all instruction sets have. */
static int32_t make_key(float v) { return (int32_t)(gumbel_key_of_value(v) ^ 0x80000000u); }

static float get_value_of_key(int32_t key)
{
    return gumbel_value_of_key((uint32_t)key ^ 0x80000000u);
}

/* -------------------------------------------------------------------------------- a guess ---- */

/* The number of groups of blocks: at most half the blocks, or if there are few, a block each. */
static int count_groups(int64_t blocks)
{
    if (blocks >= 2 * CPU_GROUPS)
        return CPU_GROUPS;
    return blocks >= CPU_GROUPS ? CPU_GROUPS / 2 : (int)blocks;
}

int cpu_guesses_nth_largest(int64_t n, int64_t blocks)
{
    return n <= (blocks < CPU_GROUPS ? blocks : count_groups(blocks) / 5);
}

/* Keys of the largest maximum of each group, then INT32_MIN. Block k is in group k modulo `groups`.
 */
static void find_group_keys(const float *maxima, int64_t blocks, int groups, int32_t *keys)
{
    float most[CPU_GROUPS];
    int64_t k = groups;
    memcpy(most, maxima, (size_t)groups * sizeof *most);
    for (; k + groups <= blocks; k += groups)
        for (int j = 0; j < groups; j++)
            most[j] = maxima[k + j] > most[j] ? maxima[k + j] : most[j];
    for (int j = 0; k + j < blocks; j++)
        most[j] = maxima[k + j] > most[j] ? maxima[k + j] : most[j];
    for (int j = 0; j < CPU_GROUPS; j++)
        keys[j] = j < groups ? make_key(most[j]) : INT32_MIN;
}

/* The number of keys from `least` on, of whole vectors of keys. */
static int count_keys_from(const int32_t *keys, int count, int32_t least)
{
    int found = 0;
    _Static_assert(CPU_GROUPS % KEY_LANES == 0, "whole vectors");
    for (int j = 0; j < count; j += KEY_LANES)
        for (int lane = 0; lane < KEY_LANES; lane++)
            found += keys[j + lane] >= least;
    return found;
}

/* Each group that reaches a value has a token of its own that does. Groups are many compared with
 * n, so that few of them have two. */
float cpu_guess_nth_largest(const float *maxima, int64_t blocks, int64_t n, float scale,
                            float min_value)
{
    int32_t keys[CPU_GROUPS], low = INT32_MAX, high = INT32_MIN;
    const int groups = count_groups(blocks);
    GUMBEL_ASSERT(cpu_guesses_nth_largest(n, blocks));
    find_group_keys(maxima, blocks, groups, keys);
    for (int j = 0; j < groups; j++) {
        low = keys[j] < low ? keys[j] : low;
        high = keys[j] > high ? keys[j] : high;
    }
    while (low < high) { /* n groups reach `low`, and the n-th largest key is at most `high` */
        const int32_t middle = (int32_t)(((int64_t)low + high + 1) >> 1);
        const int count = count_keys_from(keys, groups, middle);
        if (count < n) {
            high = middle - 1;
            continue;
        }
        low = middle;
        if (count <= n + n / 4)
            break;
    }
    const float value = get_value_of_key(low) * scale;
    return value > min_value ? value : min_value;
}

/* --------------------------------------------------------------------------- a few values ---- */

/* Sorts `count` keys in descending order. Keys from there on are INT32_MIN. */
static void sort_keys(const int32_t *keys, int count, int32_t *sorted)
{
    uint8_t taken[CPU_FEW] = {0};
    _Static_assert(CPU_FEW % KEY_LANES == 0, "whole vectors");
    for (int i = 0; i < count; i++) {
        int32_t place = 0;
        for (int j = 0; j < count; j += KEY_LANES)
            for (int lane = 0; lane < KEY_LANES; lane++)
                place += keys[j + lane] > keys[i];
        while (taken[place]) /* by an equal key */
            place++;
        taken[place] = 1;
        sorted[place] = keys[i];
    }
}

cpu_selection cpu_select_among_few(const cpu_values *values, int by_mass, gumbel_wide needed,
                                   float min_value)
{
    int32_t keys[CPU_FEW], sorted[CPU_FEW];
    const int32_t least = make_key(min_value);
    cpu_selection selection = {0};
    GUMBEL_ASSERT(values->few <= CPU_FEW && values->scale == 1.0f && !values->by_distance);
    for (int i = 0; i < CPU_FEW; i++)
        keys[i] = i < values->few ? make_key(values->span[0].v[i]) : INT32_MIN;
    sort_keys(keys, values->few, sorted);
    for (int i = 0, next; i < values->few && sorted[i] >= least; i = next) {
        const float value = get_value_of_key(sorted[i]);
        for (next = i + 1; next < values->few && sorted[next] == sorted[i];)
            next++;
        selection.at = (gumbel_wide)(next - i);
        if (by_mass)
            selection.at *= gumbel_token_mass(gumbel_exp(value - values->largest));
        if (selection.at > 0 && selection.above + selection.at >= needed) {
            selection.reached = 1;
            selection.value = value;
            return selection;
        }
        selection.above += selection.at;
    }
    return selection;
}
