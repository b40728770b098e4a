/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/call/cpu_edits.h"

#include "core/fail.h"
#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"

/* The bits low .. high of a word of 32 tokens; both bounds may be outside of it. */
static uint32_t get_bits_between(int64_t low, int64_t high)
{
    uint32_t from = low <= 0 ? ~0u : low < 32 ? ~0u << low : 0;
    uint32_t beyond = high <= 0 ? ~0u : high < 32 ? ~0u << high : 0;
    return from & ~beyond;
}

/* ------------------------------------------------------------------------ mask and bans ---- */

int cpu_excludes_tokens(const cpu_edits *e)
{
    return e->problem && (e->problem->features & GUMBEL_FEATURE_MASK || e->banned);
}

/* The tokens that mask and bans allow, of the 32 from tile->token + `at` on, a multiple of 32. */
static uint32_t load_allowed_bits(const cpu_edits *e, const cpu_row_tile *tile, int at)
{
    uint32_t bits = ~0u;
    int64_t token = tile->token + at;
    GUMBEL_ASSERT(at % 32 == 0 && token % 32 == 0);
    GUMBEL_ASSERT(token / 32 < gumbel_mask_words_of(e->problem->first_token + e->problem->vocab));
    GUMBEL_ASSERT(!e->banned || (token >= e->base && (token - e->base) / GUMBEL_BLOCK < e->blocks));
    if (e->problem->features & GUMBEL_FEATURE_MASK)
        bits = (uint32_t)gumbel_problem_mask(e->problem, tile->b)[token >> 5];
    if (e->banned)
        bits &= ~e->banned[tile->b * 2 * e->blocks + ((token - e->base) >> 5)];
    return bits;
}

uint32_t cpu_find_allowed_bits(const cpu_edits *e, const cpu_row_tile *tile, int at)
{
    return load_allowed_bits(e, tile, at) & get_bits_between(tile->low - at, tile->high - at);
}

/* The tokens of a word that the tile has and that are not allowed. */
static uint32_t find_excluded_bits(const cpu_edits *e, const cpu_row_tile *tile, int at)
{
    return get_bits_between(tile->low - at, tile->high - at) & ~load_allowed_bits(e, tile, at);
}

/* Whether mask or bans exclude any token of the tile. */
static int is_masked(const cpu_edits *e, const cpu_row_tile *tile)
{
    int begin = (tile->low + 31) & ~31, end = tile->high & ~31, first = begin - 32;
    int64_t word = (tile->token + begin) / 32, last = (tile->token + end) / 32;
    uint32_t excluded = 0;
    if (!cpu_excludes_tokens(e))
        return 0;
    if (e->problem->features & GUMBEL_FEATURE_MASK) {
        const int32_t *mask = gumbel_problem_mask(e->problem, tile->b);
        for (int64_t w = word; w < last; w++)
            excluded |= ~(uint32_t)mask[w];
    }
    if (e->banned) {
        const uint32_t *banned = e->banned + tile->b * 2 * e->blocks;
        for (int64_t w = word - e->base / 32; w < last - e->base / 32; w++)
            excluded |= banned[w];
    }
    if (first >= 0)
        excluded |= find_excluded_bits(e, tile, first);
    if (end >= begin && end < tile->high)
        excluded |= find_excluded_bits(e, tile, end);
    return excluded != 0;
}

static void mask_tokens_of_word(const cpu_edits *e, const cpu_row_tile *tile, int at, float *z)
{
    uint32_t drop = find_excluded_bits(e, tile, at);
    for (; drop != 0; drop &= drop - 1)
        z[at - tile->low + __builtin_ctz(drop)] = -INFINITY;
}

/* Sets tokens that are not allowed to -inf: whole words by the kernel. */
static void mask_row_tile(const cpu_edits *e, const cpu_kernels *kernels, const cpu_row_tile *tile,
                          float *z)
{
    uint32_t drop[CPU_TILE_MAX / 32];
    int begin = (tile->low + 31) & ~31, end = tile->high & ~31, words = 0;
    GUMBEL_ASSERT(tile->low >= 0 && tile->low < tile->high && tile->high <= CPU_TILE_MAX);
    for (int at = begin; at < end; at += 32)
        drop[words++] = ~load_allowed_bits(e, tile, at);
    if (words > 0)
        kernels->mask_tokens(z + (begin - tile->low), drop, words);
    if (begin > tile->low)
        mask_tokens_of_word(e, tile, begin - 32, z);
    if (end >= begin && end < tile->high)
        mask_tokens_of_word(e, tile, end, z);
}

/* Whether any of the 64 tokens from tile->token + `at` on is allowed. */
static int allows_any_of_block(const cpu_edits *e, const cpu_row_tile *tile, int at)
{
    if (at >= tile->low && at + GUMBEL_BLOCK <= tile->high)
        return (load_allowed_bits(e, tile, at) | load_allowed_bits(e, tile, at + 32)) != 0;
    return cpu_find_allowed_bits(e, tile, at) ||
           (at + 32 < tile->high && cpu_find_allowed_bits(e, tile, at + 32));
}

int cpu_find_allowed_blocks(const cpu_edits *e, const cpu_row_tile *whole, cpu_row_tile *run)
{
    int at = (int)(run->token - whole->token) + (int)cpu_round_up(run->high, GUMBEL_BLOCK);
    GUMBEL_ASSERT(run->token >= whole->token && at >= 0);
    int end = at;
    if (cpu_excludes_tokens(e) && (at > 0 || is_masked(e, whole))) {
        while (at < whole->high && !allows_any_of_block(e, whole, at))
            at += GUMBEL_BLOCK;
        for (end = at; end < whole->high && allows_any_of_block(e, whole, end);)
            end += GUMBEL_BLOCK;
    } else {
        end = whole->high;
    }
    if (at >= whole->high)
        return 0;
    *run = *whole;
    run->token += at;
    run->low = whole->low > at ? whole->low - at : 0;
    run->high = (end < whole->high ? end : whole->high) - at;
    GUMBEL_ASSERT(run->low < run->high && run->token % GUMBEL_BLOCK == 0);
    int skipped = at + run->low - whole->low;
    run->from = (const char *)whole->from + skipped * cpu_get_element_size(whole->dtype);
    run->bias = whole->bias ? whole->bias + skipped : NULL;
    return 1;
}

/* --------------------------------------------------------------------------------- biases ---- */

/* Finds the row's range [*begin, *end) of biases->order for the tile's blocks. */
static void find_biases(const cpu_edits *e, const cpu_biases *biases, const cpu_row_tile *tile,
                        uint32_t *begin, uint32_t *end)
{
    const uint32_t *ends = biases->ends + tile->b * e->blocks;
    int64_t first = (tile->token - e->base) / GUMBEL_BLOCK;
    GUMBEL_ASSERT(first >= 0 && first + (tile->high - 1) / GUMBEL_BLOCK < e->blocks);
    *begin = first > 0 ? ends[first - 1] : 0;
    *end = ends[first + (tile->high - 1) / GUMBEL_BLOCK];
}

static int are_biases_sorted(const cpu_edits *e, const cpu_biases *biases, const cpu_row_tile *tile)
{
    return biases->ends[tile->b * e->blocks] != CPU_BIASES_UNSORTED;
}

static int is_biased(const cpu_edits *e, const cpu_biases *biases, const cpu_row_tile *tile)
{
    uint32_t begin, end;
    if (!biases->ends)
        return 0;
    if (!are_biases_sorted(e, biases, tile))
        return 1;
    find_biases(e, biases, tile, &begin, &end);
    return begin < end;
}

/* Adds the biases of the row's list to y, at the indices that `order` gives, or at all of them. */
static void add_biases(const cpu_edits *e, const cpu_biases *biases, const cpu_row_tile *tile,
                       float *y)
{
    const gumbel_token_lists *bias = biases->lists;
    int64_t row = gumbel_problem_list_of_row(e->problem, tile->b), list = bias->offsets[row];
    int sorted = are_biases_sorted(e, biases, tile);
    const uint32_t *order = biases->order + tile->b * e->blocks * CPU_BIASES;
    uint32_t begin = 0, end = 0;
    if (sorted)
        find_biases(e, biases, tile, &begin, &end);
    GUMBEL_ASSERT(begin <= end && end <= (uint64_t)e->blocks * CPU_BIASES);
    int64_t count = sorted ? end - begin : bias->offsets[row + 1] - list;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = list + (sorted ? order[begin + k] : k);
        uint64_t at = (uint64_t)(bias->ids[i] - tile->token - tile->low);
        if (at < (uint64_t)(tile->high - tile->low))
            y[at] += bias->values[i];
    }
}

/* ------------------------------------------------------------------------------ penalties ---- */

/* Row b's index in the counted history. */
static int64_t find_counted_row(const cpu_edits *e, const cpu_counted_tokens *c, int64_t b)
{
    return c->by_row ? b : gumbel_problem_slot(e->problem, b);
}

/* The tokens that c has in the prompt or the output, of the 32 from tile->token + `at` on, without
 * the tokens that the tile or the history lacks. *output: the tokens of the output. */
static uint32_t load_seen_bits(const cpu_edits *e, const cpu_counted_tokens *c,
                               const cpu_row_tile *tile, int at, uint32_t *output)
{
    const gumbel_history *h = &c->history;
    int64_t token = tile->token + at - c->first;
    int64_t word = find_counted_row(e, c, tile->b) * c->words + (token >> 5);
    int64_t remaining = h->vocab_size - token;
    GUMBEL_ASSERT(token >= 0 && token % 32 == 0);
    GUMBEL_ASSERT(remaining <= 0 || (token >> 5) < c->words);
    *output = 0;
    if (remaining <= 0)
        return 0;
    uint32_t bits =
        get_bits_between(tile->low - at, remaining < tile->high - at ? remaining : tile->high - at);
    *output = h->output[word] & bits;
    return (h->prompt[word] & bits) | *output;
}

/* Whether c has any token in the words of the tile; tokens beside the tile may be among them. */
static int has_seen(const cpu_edits *e, const cpu_counted_tokens *c, const cpu_row_tile *tile)
{
    const gumbel_history *h = &c->history;
    int64_t row = find_counted_row(e, c, tile->b) * c->words;
    int64_t begin = (tile->token + tile->low - c->first) / 32;
    GUMBEL_ASSERT(begin >= 0 && row >= 0);
    int64_t end = gumbel_mask_words_of(tile->token + tile->high - c->first);
    uint32_t any = 0;
    end = end < c->words ? end : c->words;
    for (int64_t word = begin; word < end; word++)
        any |= h->prompt[row + word] | h->output[row + word];
    return any != 0;
}

static int is_penalised(const cpu_edits *e, const cpu_row_tile *tile)
{
    if (e->sources == 0)
        return 0;
    gumbel_penalties q = gumbel_problem_penalties(e->problem, tile->b);
    int any = 0;
    for (int k = 0; k < e->sources && gumbel_penalties_are_active(&q); k++)
        any |= has_seen(e, &e->counted[k], tile);
    return any;
}

/* Count of token tile->token + at + bit in the output. */
static uint32_t count_in_output(const cpu_edits *e, const cpu_row_tile *tile, int at, int bit,
                                const uint32_t outputs[2])
{
    uint32_t count = 0;
    for (int k = 0; k < e->sources; k++) {
        const cpu_counted_tokens *c = &e->counted[k];
        if (outputs[k] >> bit & 1)
            count += gumbel_history_count(&c->history, find_counted_row(e, c, tile->b),
                                          tile->token - c->first + at + bit);
    }
    return count < GUMBEL_COUNT_MAX ? count : GUMBEL_COUNT_MAX;
}

static void penalise_row_tile(const cpu_edits *e, const cpu_row_tile *tile, float *y)
{
    gumbel_penalties q = gumbel_problem_penalties(e->problem, tile->b);
    GUMBEL_ASSERT(e->sources >= 1 && e->sources <= 2);
    for (int at = tile->low & ~31; at < tile->high; at += 32) {
        uint32_t outputs[2] = {0, 0}, bits = 0;
        for (int k = 0; k < e->sources; k++)
            bits |= load_seen_bits(e, &e->counted[k], tile, at, &outputs[k]);
        for (; bits != 0; bits &= bits - 1) {
            int bit = __builtin_ctz(bits);
            float *to = &y[at - tile->low + bit];
            *to = gumbel_apply_penalties(*to, &q, count_in_output(e, tile, at, bit, outputs));
        }
    }
}

/* ---------------------------------------------------------------------------------- tiles ---- */

int cpu_has_edits(const cpu_edits *e, const cpu_row_tile *tile)
{
    return e->problem && (is_masked(e, tile) || is_biased(e, &e->bias, tile) ||
                          is_penalised(e, tile) || is_biased(e, &e->late_bias, tile));
}

void cpu_transform_edited_tile(const cpu_edits *e, const cpu_kernels *kernels,
                               const cpu_row_tile *tile, const cpu_transform *t, float *z)
{
    int count = tile->high - tile->low;
    GUMBEL_ASSERT(count > 0 && tile->b >= 0);
    GUMBEL_ASSERT(!e->problem || tile->b < e->problem->batch);
    int biased = e->problem && is_biased(e, &e->bias, tile);
    int penalised = e->problem && is_penalised(e, tile);
    int late = e->problem && is_biased(e, &e->late_bias, tile);
    if (biased || penalised || late) {
        cpu_transform before = *t, after = cpu_identity;
        before.inverse_temperature = 1.0f;
        after.inverse_temperature = t->inverse_temperature;
        kernels->transform_logits(tile->from, tile->dtype, count, &before, z);
        if (biased)
            add_biases(e, &e->bias, tile, z);
        if (penalised)
            penalise_row_tile(e, tile, z);
        if (late)
            add_biases(e, &e->late_bias, tile, z);
        kernels->transform_logits(z, GUMBEL_FLOAT32, count, &after, z);
    } else {
        kernels->transform_logits(tile->from, tile->dtype, count, t, z);
    }
    if (is_masked(e, tile))
        mask_row_tile(e, kernels, tile, z);
}
