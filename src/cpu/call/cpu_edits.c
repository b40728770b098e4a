/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/call/cpu_edits.h"

#include "core/fail.h"
#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"

/* Bits of a word of 32 tokens that stand in low .. high, counted from the word's first token. */
static uint32_t bits_between(int64_t low, int64_t high)
{
    uint32_t from = low <= 0 ? ~0u : low < 32 ? ~0u << low : 0;
    uint32_t beyond = high <= 0 ? ~0u : high < 32 ? ~0u << high : 0;
    return from & ~beyond;
}

/* ------------------------------------------------------------------------ mask and bans ---- */

static int has_mask(const cpu_edits *e)
{
    return e->problem && (e->problem->request & GUMBEL_REQUEST_MASK || e->banned);
}

/* The 32 tokens from piece->token + `at` on, a multiple of 32: those that mask and bans allow. */
static uint32_t allowed(const cpu_edits *e, const cpu_piece *piece, int at)
{
    uint32_t bits = ~0u;
    int64_t token = piece->token + at;
    GUMBEL_ASSERT(at % 32 == 0 && token % 32 == 0);
    GUMBEL_ASSERT(token / 32 < gumbel_mask_words_of(e->problem->first_token + e->problem->vocab));
    GUMBEL_ASSERT(!e->banned || (token >= e->base && (token - e->base) / GUMBEL_BLOCK < e->blocks));
    if (e->problem->request & GUMBEL_REQUEST_MASK)
        bits = (uint32_t)gumbel_problem_mask(e->problem, piece->b)[token >> 5];
    if (e->banned)
        bits &= ~e->banned[piece->b * 2 * e->blocks + ((token - e->base) >> 5)];
    return bits;
}

/* The same tokens without those that the piece lacks. */
static uint32_t left(const cpu_edits *e, const cpu_piece *piece, int at)
{
    return allowed(e, piece, at) & bits_between(piece->low - at, piece->high - at);
}

int cpu_edits_leave(const cpu_edits *e, const cpu_piece *piece)
{
    if (!has_mask(e))
        return 1;
    for (int at = piece->low & ~31; at < piece->high; at += 32)
        if (left(e, piece, at))
            return 1;
    return 0;
}

/* Whether any of the piece's tokens is not allowed. */
static int is_masked(const cpu_edits *e, const cpu_piece *piece)
{
    int begin = (piece->low + 31) & ~31, end = piece->high & ~31, first = begin - 32;
    int64_t word = (piece->token + begin) / 32, last = (piece->token + end) / 32;
    uint32_t all = ~0u;
    if (!has_mask(e))
        return 0;
    if (e->problem->request & GUMBEL_REQUEST_MASK) {
        const int32_t *mask = gumbel_problem_mask(e->problem, piece->b);
        for (int64_t w = word; w < last; w++)
            all &= (uint32_t)mask[w];
    }
    if (e->banned) {
        const uint32_t *banned = e->banned + piece->b * 2 * e->blocks;
        for (int64_t w = word - e->base / 32; w < last - e->base / 32; w++)
            all &= ~banned[w];
    }
    if (first >= 0)
        all &= left(e, piece, first) | ~bits_between(piece->low - first, piece->high - first);
    if (end >= begin && end < piece->high)
        all &= allowed(e, piece, end) | ~bits_between(0, piece->high - end);
    return all != ~0u;
}

/* Set the tokens of a word that the piece has, and that are not allowed, to -inf. */
static void mask_word(const cpu_edits *e, const cpu_piece *piece, int at, float *z)
{
    uint32_t drop = bits_between(piece->low - at, piece->high - at) & ~allowed(e, piece, at);
    for (; drop != 0; drop &= drop - 1)
        z[at - piece->low + __builtin_ctz(drop)] = -INFINITY;
}

/* Set what may not be drawn to -inf: whole words by the kernel. */
static void mask_piece(const cpu_edits *e, const cpu_kernels *kernels, const cpu_piece *piece,
                       float *z)
{
    uint32_t drop[CPU_TILE_MOST / 32];
    int begin = (piece->low + 31) & ~31, end = piece->high & ~31, words = 0;
    GUMBEL_ASSERT(piece->low >= 0 && piece->low < piece->high && piece->high <= CPU_TILE_MOST);
    for (int at = begin; at < end; at += 32)
        drop[words++] = ~allowed(e, piece, at);
    if (words > 0)
        kernels->mask(z + (begin - piece->low), drop, words);
    if (begin > piece->low)
        mask_word(e, piece, begin - 32, z);
    if (end >= begin && end < piece->high)
        mask_word(e, piece, end, z);
}

/* Whether the block of 64 tokens from piece->token + `at` on has any that is left. */
static int block_is_left(const cpu_edits *e, const cpu_piece *piece, int at)
{
    if (at >= piece->low && at + GUMBEL_BLOCK <= piece->high)
        return (allowed(e, piece, at) | allowed(e, piece, at + 32)) != 0;
    return left(e, piece, at) || (at + 32 < piece->high && left(e, piece, at + 32));
}

int cpu_edits_next(const cpu_edits *e, const cpu_piece *whole, cpu_piece *part)
{
    int at = (int)(part->token - whole->token) + (int)cpu_rounded_up(part->high, GUMBEL_BLOCK);
    GUMBEL_ASSERT(part->token >= whole->token && at >= 0);
    int end = at;
    if (has_mask(e) && (at > 0 || is_masked(e, whole))) {
        while (at < whole->high && !block_is_left(e, whole, at))
            at += GUMBEL_BLOCK;
        for (end = at; end < whole->high && block_is_left(e, whole, end);)
            end += GUMBEL_BLOCK;
    } else {
        end = whole->high;
    }
    if (at >= whole->high)
        return 0;
    *part = *whole;
    part->token += at;
    part->low = whole->low > at ? whole->low - at : 0;
    part->high = (end < whole->high ? end : whole->high) - at;
    GUMBEL_ASSERT(part->low < part->high && part->token % GUMBEL_BLOCK == 0);
    int skipped = at + part->low - whole->low;
    part->from = (const char *)whole->from + skipped * cpu_element_size(whole->dtype);
    part->bias = whole->bias ? whole->bias + skipped : NULL;
    return 1;
}

/* --------------------------------------------------------------------------------- biases ---- */

/* The row's entries of bias_order that are in the piece's blocks: [*begin, *end). */
static void find_biases(const cpu_edits *e, const cpu_piece *piece, uint32_t *begin, uint32_t *end)
{
    const uint32_t *ends = e->bias_ends + piece->b * e->blocks;
    int64_t first = (piece->token - e->base) / GUMBEL_BLOCK;
    GUMBEL_ASSERT(first >= 0 && first + (piece->high - 1) / GUMBEL_BLOCK < e->blocks);
    *begin = first > 0 ? ends[first - 1] : 0;
    *end = ends[first + (piece->high - 1) / GUMBEL_BLOCK];
}

static int is_sorted(const cpu_edits *e, const cpu_piece *piece)
{
    return e->bias_ends[piece->b * e->blocks] != CPU_BIASES_UNSORTED;
}

static int is_biased(const cpu_edits *e, const cpu_piece *piece)
{
    uint32_t begin, end;
    if (!e->bias_ends)
        return 0;
    if (!is_sorted(e, piece))
        return 1;
    find_biases(e, piece, &begin, &end);
    return begin < end;
}

/* Add the bias at place i of the row's list, if it is the piece's. */
static void add_bias(const gumbel_token_lists *bias, const cpu_piece *piece, int64_t i, float *y)
{
    uint64_t at = (uint64_t)(bias->ids[i] - piece->token - piece->low);
    if (at < (uint64_t)(piece->high - piece->low))
        y[at] += bias->values[i];
}

static void bias_piece(const cpu_edits *e, const cpu_piece *piece, float *y)
{
    const gumbel_token_lists *bias = &e->problem->transforms.bias;
    int64_t row = gumbel_problem_list_of_row(e->problem, piece->b), list = bias->offsets[row];
    if (is_sorted(e, piece)) {
        const uint32_t *order = e->bias_order + piece->b * e->blocks * CPU_BIASES;
        uint32_t begin, end;
        find_biases(e, piece, &begin, &end);
        GUMBEL_ASSERT(begin <= end && end <= (uint64_t)e->blocks * CPU_BIASES);
        for (uint32_t k = begin; k < end; k++)
            add_bias(bias, piece, list + order[k], y);
    } else {
        for (int64_t i = list; i < bias->offsets[row + 1]; i++)
            add_bias(bias, piece, i, y);
    }
}

/* ------------------------------------------------------------------------------ penalties ---- */

/* Row b's place in what is counted. */
static int64_t counted_row(const cpu_edits *e, const cpu_counted *c, int64_t b)
{
    return c->by_row ? b : gumbel_problem_slot(e->problem, b);
}

/* The 32 tokens from piece->token + `at` on that c has in the prompt or in the output, without
 * those that the piece or the history lacks. */
static uint32_t seen(const cpu_edits *e, const cpu_counted *c, const cpu_piece *piece, int at,
                     uint32_t *output)
{
    const gumbel_history *h = &c->history;
    int64_t token = piece->token + at - c->first;
    int64_t word = counted_row(e, c, piece->b) * c->words + (token >> 5);
    int64_t left = h->vocab_size - token;
    GUMBEL_ASSERT(token >= 0 && token % 32 == 0);
    GUMBEL_ASSERT(left <= 0 || (token >> 5) < c->words);
    *output = 0;
    if (left <= 0)
        return 0;
    uint32_t bits =
        bits_between(piece->low - at, left < piece->high - at ? left : piece->high - at);
    *output = h->output[word] & bits;
    return (h->prompt[word] & bits) | *output;
}

/* Whether c has any token of the piece's words: those outside of the piece make no difference but
 * a little work. */
static int has_seen(const cpu_edits *e, const cpu_counted *c, const cpu_piece *piece)
{
    const gumbel_history *h = &c->history;
    int64_t row = counted_row(e, c, piece->b) * c->words;
    int64_t begin = (piece->token + piece->low - c->first) / 32;
    GUMBEL_ASSERT(begin >= 0 && row >= 0);
    int64_t end = gumbel_mask_words_of(piece->token + piece->high - c->first);
    uint32_t any = 0;
    end = end < c->words ? end : c->words;
    for (int64_t word = begin; word < end; word++)
        any |= h->prompt[row + word] | h->output[row + word];
    return any != 0;
}

static int is_penalised(const cpu_edits *e, const cpu_piece *piece)
{
    if (e->sources == 0)
        return 0;
    gumbel_penalties q = gumbel_problem_penalties(e->problem, piece->b);
    int any = 0;
    for (int k = 0; k < e->sources && gumbel_penalties_are_active(&q); k++)
        any |= has_seen(e, &e->counted[k], piece);
    return any;
}

/* How often the token `bit` behind piece->token + `at` is in the output. */
static uint32_t count_of(const cpu_edits *e, const cpu_piece *piece, int at, int bit,
                         const uint32_t outputs[2])
{
    uint32_t count = 0;
    for (int k = 0; k < e->sources; k++) {
        const cpu_counted *c = &e->counted[k];
        if (outputs[k] >> bit & 1)
            count += gumbel_history_count(&c->history, counted_row(e, c, piece->b),
                                          piece->token - c->first + at + bit);
    }
    return count < GUMBEL_COUNT_MOST ? count : GUMBEL_COUNT_MOST;
}

static void penalise_piece(const cpu_edits *e, const cpu_piece *piece, float *y)
{
    gumbel_penalties q = gumbel_problem_penalties(e->problem, piece->b);
    GUMBEL_ASSERT(e->sources >= 1 && e->sources <= 2);
    for (int at = piece->low & ~31; at < piece->high; at += 32) {
        uint32_t outputs[2] = {0, 0}, bits = 0;
        for (int k = 0; k < e->sources; k++)
            bits |= seen(e, &e->counted[k], piece, at, &outputs[k]);
        for (; bits != 0; bits &= bits - 1) {
            int bit = __builtin_ctz(bits);
            float *to = &y[at - piece->low + bit];
            *to = gumbel_apply_penalties(*to, &q, count_of(e, piece, at, bit, outputs));
        }
    }
}

/* ------------------------------------------------------------------------------- a piece ---- */

int cpu_edits_touch(const cpu_edits *e, const cpu_piece *piece)
{
    return e->problem && (is_masked(e, piece) || is_biased(e, piece) || is_penalised(e, piece));
}

void cpu_edits_transform(const cpu_edits *e, const cpu_kernels *kernels, const cpu_piece *piece,
                         const cpu_transform *t, float *z)
{
    int count = piece->high - piece->low;
    GUMBEL_ASSERT(count > 0 && piece->b >= 0);
    GUMBEL_ASSERT(!e->problem || piece->b < e->problem->batch);
    int biased = e->problem && is_biased(e, piece);
    int penalised = e->problem && is_penalised(e, piece);
    if (biased || penalised) {
        cpu_transform before = *t, after = cpu_identity;
        before.inverse_temperature = 1.0f;
        after.inverse_temperature = t->inverse_temperature;
        kernels->transform(piece->from, piece->dtype, count, &before, z);
        if (biased)
            bias_piece(e, piece, z);
        if (penalised)
            penalise_piece(e, piece, z);
        kernels->transform(z, GUMBEL_FLOAT32, count, &after, z);
    } else {
        kernels->transform(piece->from, piece->dtype, count, t, z);
    }
    if (is_masked(e, piece))
        mask_piece(e, kernels, piece, z);
}
