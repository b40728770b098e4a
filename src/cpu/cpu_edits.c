/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu_edits.h"

#include "cpu/cpu_job.h"
#include "cpu/cpu_policy.h"

/* Bits of a word of 32 tokens that stand in low .. high, counted from the word's first token. */
static uint32_t bits_between(int64_t low, int64_t high)
{
    uint32_t from = low > 0 ? ~0u << low : ~0u;
    return high < 32 ? from & ~(~0u << high) : from;
}

/* ----------------------------------------------------------------------------- preparing ---- */

typedef struct cpu_edits_room {
    uint32_t *banned, *biased, *prompt, *output;
    unsigned char *ordered;
    uint16_t *counts;
} cpu_edits_room;

static int lists_are_counted(const gumbel_problem *p)
{
    return p->request & GUMBEL_REQUEST_PENALTIES && !p->history.prompt;
}

static int64_t blocks_of(const gumbel_problem *p)
{
    int64_t base = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    return (p->first_token + p->vocab - base + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK;
}

static cpu_edits_room carve(gumbel_cursor *cursor, const gumbel_problem *p)
{
    size_t blocks = (size_t)blocks_of(p), batch = (size_t)p->batch;
    size_t banned = p->request & GUMBEL_REQUEST_BANNED ? batch : 0;
    size_t biased = p->request & GUMBEL_REQUEST_BIAS ? batch : 0;
    size_t counted = lists_are_counted(p) ? batch : 0;
    cpu_edits_room room;
    room.banned = gumbel_carve(cursor, banned, 2 * blocks, sizeof *room.banned);
    room.biased = gumbel_carve(cursor, biased, (blocks + 31) / 32, sizeof *room.biased);
    room.ordered = gumbel_carve(cursor, biased, 1, sizeof *room.ordered);
    room.prompt = gumbel_carve(cursor, counted, 2 * blocks, sizeof *room.prompt);
    room.output = gumbel_carve(cursor, counted, 2 * blocks, sizeof *room.output);
    room.counts = gumbel_carve(cursor, counted, blocks * GUMBEL_BLOCK, sizeof *room.counts);
    return room;
}

size_t cpu_edits_size(const gumbel_problem *p)
{
    gumbel_cursor cursor = {0};
    carve(&cursor, p);
    return cursor.used;
}

typedef struct cpu_sorting {
    const cpu_edits *edits;
    cpu_edits_room room;
    _Atomic int64_t next; /* row to claim */
} cpu_sorting;

/* Set the bits of row b's ids, a bit for every 1 << `shift` tokens. Ids of other shards have no
 * bit. */
static void set_bits(const cpu_edits *e, const gumbel_token_lists *lists, int64_t b, int shift,
                     uint32_t *bits, int64_t words)
{
    memset(bits, 0, (size_t)words * sizeof *bits);
    if (!lists->offsets)
        return;
    for (int64_t i = lists->offsets[b]; i < lists->offsets[b + 1]; i++) {
        uint64_t at = (uint64_t)(lists->ids[i] - e->base) >> shift;
        if (at < (uint64_t)words * 32)
            bits[at >> 5] |= 1u << (at & 31);
    }
}

static void count_row(const cpu_edits *e, const gumbel_token_lists *lists, int64_t b,
                      uint16_t *counts)
{
    uint64_t tokens = (uint64_t)e->words * 32;
    if (!lists->offsets)
        return;
    for (int64_t i = lists->offsets[b]; i < lists->offsets[b + 1]; i++) {
        uint64_t at = (uint64_t)(lists->ids[i] - e->base);
        if (at < tokens)
            counts[at] = 0;
    }
    for (int64_t i = lists->offsets[b]; i < lists->offsets[b + 1]; i++) {
        uint64_t at = (uint64_t)(lists->ids[i] - e->base);
        if (at < tokens && counts[at] < GUMBEL_COUNT_MOST)
            counts[at]++;
    }
}

static unsigned char is_ordered(const gumbel_token_lists *lists, int64_t b)
{
    for (int64_t i = lists->offsets[b] + 1; i < lists->offsets[b + 1]; i++)
        if (lists->ids[i] < lists->ids[i - 1])
            return 0;
    return 1;
}

/* One thread's share: claim rows until none is left. */
static void sort_rows(void *argument, int32_t index)
{
    cpu_sorting *job = argument;
    const cpu_edits *e = job->edits;
    const gumbel_transforms *t = &e->problem->transforms;
    const cpu_edits_room *room = &job->room;
    (void)index;
    for (int64_t b; (b = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) <
                    e->problem->batch;) {
        if (e->banned)
            set_bits(e, &t->banned, b, 0, room->banned + b * e->words, e->words);
        if (e->biased) {
            set_bits(e, &t->bias, b, 6, room->biased + b * e->groups, e->groups);
            room->ordered[b] = is_ordered(&t->bias, b);
        }
        if (lists_are_counted(e->problem)) {
            set_bits(e, &t->prompt_tokens, b, 0, room->prompt + b * e->words, e->words);
            set_bits(e, &t->output_tokens, b, 0, room->output + b * e->words, e->words);
            count_row(e, &t->output_tokens, b, room->counts + b * e->words * 32);
        }
    }
}

void cpu_edits_prepare(cpu_edits *e, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    *e = (cpu_edits){0};
    if (!(p->request & GUMBEL_REQUEST_TRANSFORMS))
        return;
    gumbel_cursor cursor = {workspace, 0};
    cpu_sorting job = {.edits = e, .room = carve(&cursor, p)};
    int64_t blocks = blocks_of(p);
    *e = (cpu_edits){.problem = p,
                     .base = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK,
                     .words = 2 * blocks,
                     .groups = (blocks + 31) / 32};
    int listed = lists_are_counted(p);
    if (p->request & GUMBEL_REQUEST_BANNED)
        e->banned = job.room.banned;
    if (p->request & GUMBEL_REQUEST_BIAS) {
        e->biased = job.room.biased;
        e->ordered = job.room.ordered;
    }
    if (listed)
        e->counted = (cpu_counted){job.room.prompt, job.room.output, job.room.counts,
                                   e->base,         e->words * 32,   e->words};
    else if (p->request & GUMBEL_REQUEST_PENALTIES)
        e->counted = (cpu_counted){p->history.prompt,     p->history.output,
                                   p->history.counts,     0,
                                   p->history.vocab_size, gumbel_words_of(p->history.vocab_size)};
    if (e->banned || e->biased || listed)
        cpu_run_task(cpu, p->batch >= CPU_PARALLEL_LISTS, sort_rows, &job);
}

/* ------------------------------------------------------------------------ mask and bans ---- */

/* The 32 tokens from `at` on, a multiple of 32 counted from piece->token: those that may be drawn,
 * of those that count. */
static uint32_t allowed(const cpu_edits *e, const cpu_piece *piece, int at)
{
    uint32_t bits = bits_between(piece->low - at, piece->high - at);
    int64_t token = piece->token + at;
    if (e->problem->request & GUMBEL_REQUEST_MASK)
        bits &= (uint32_t)gumbel_problem_mask(e->problem, piece->b)[token >> 5];
    if (e->banned)
        bits &= ~e->banned[piece->b * e->words + ((token - e->base) >> 5)];
    return bits;
}

int cpu_edits_leave(const cpu_edits *e, const cpu_piece *piece)
{
    if (!e->problem || (!(e->problem->request & GUMBEL_REQUEST_MASK) && !e->banned))
        return 1;
    for (int at = piece->low & ~31; at < piece->high; at += 32)
        if (allowed(e, piece, at))
            return 1;
    return 0;
}

static int is_masked(const cpu_edits *e, const cpu_piece *piece)
{
    if (!(e->problem->request & GUMBEL_REQUEST_MASK) && !e->banned)
        return 0;
    for (int at = piece->low & ~31; at < piece->high; at += 32)
        if (allowed(e, piece, at) != bits_between(piece->low - at, piece->high - at))
            return 1;
    return 0;
}

/* Set what may not be drawn to -inf. */
static void mask_piece(const cpu_edits *e, const cpu_piece *piece, float *z)
{
    for (int at = piece->low & ~31; at < piece->high; at += 32) {
        uint32_t counts = bits_between(piece->low - at, piece->high - at);
        uint32_t drop = counts & ~allowed(e, piece, at);
        if (drop == ~0u) {
            for (int i = 0; i < 32; i++)
                z[at - piece->low + i] = -INFINITY;
            continue;
        }
        for (; drop != 0; drop &= drop - 1)
            z[at - piece->low + __builtin_ctz(drop)] = -INFINITY;
    }
}

/* ------------------------------------------------------------------- biases and penalties ---- */

/* A row's biases with ids in the piece, as a range of the list: all of it where it is not ordered.
 */
static void find_biases(const cpu_edits *e, const cpu_piece *piece, int64_t *begin, int64_t *end)
{
    const gumbel_token_lists *bias = &e->problem->transforms.bias;
    *begin = bias->offsets[piece->b];
    *end = bias->offsets[piece->b + 1];
    if (!e->ordered[piece->b])
        return;
    for (int64_t above = *end; *begin < above;) {
        int64_t middle = *begin + (above - *begin) / 2;
        if (bias->ids[middle] < piece->token + piece->low)
            *begin = middle + 1;
        else
            above = middle;
    }
    int64_t found = *begin;
    while (found < *end && bias->ids[found] < piece->token + piece->high)
        found++;
    *end = found;
}

static int is_biased(const cpu_edits *e, const cpu_piece *piece)
{
    if (!e->biased)
        return 0;
    const uint32_t *groups = e->biased + piece->b * e->groups;
    int64_t last = (piece->token + piece->high - 1 - e->base) / GUMBEL_BLOCK;
    for (int64_t block = (piece->token - e->base) / GUMBEL_BLOCK; block <= last; block++)
        if (groups[block >> 5] >> (block & 31) & 1)
            return 1;
    return 0;
}

static void bias_piece(const cpu_edits *e, const cpu_piece *piece, float *y)
{
    const gumbel_token_lists *bias = &e->problem->transforms.bias;
    uint64_t first = (uint64_t)(piece->token + piece->low);
    uint64_t count = (uint64_t)(piece->high - piece->low);
    int64_t begin, end;
    find_biases(e, piece, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        uint64_t at = (uint64_t)bias->ids[i] - first;
        if (at < count)
            y[at] += bias->values[i];
    }
}

/* The 32 tokens from `at` on that are in the prompt or in the output, of those that count. */
static uint32_t seen(const cpu_edits *e, const cpu_piece *piece, int at, uint32_t *output)
{
    const cpu_counted *c = &e->counted;
    int64_t token = piece->token + at - c->first, word = piece->b * c->words + (token >> 5);
    if (token >= c->tokens)
        return 0;
    int64_t end = c->tokens - token < piece->high - at ? c->tokens - token : piece->high - at;
    uint32_t bits = bits_between(piece->low - at, end);
    *output = c->output[word] & bits;
    return (c->prompt[word] & bits) | *output;
}

static int is_penalised(const cpu_edits *e, const cpu_piece *piece)
{
    if (!e->counted.prompt)
        return 0;
    gumbel_penalties q = gumbel_problem_penalties(e->problem, piece->b);
    uint32_t output;
    for (int at = piece->low & ~31; at < piece->high && gumbel_penalties_act(&q); at += 32)
        if (seen(e, piece, at, &output))
            return 1;
    return 0;
}

static void penalise_piece(const cpu_edits *e, const cpu_piece *piece, float *y)
{
    const cpu_counted *c = &e->counted;
    gumbel_penalties q = gumbel_problem_penalties(e->problem, piece->b);
    const uint16_t *counts = c->counts + piece->b * c->tokens;
    for (int at = piece->low & ~31; at < piece->high; at += 32) {
        uint32_t output = 0;
        for (uint32_t bits = seen(e, piece, at, &output); bits != 0; bits &= bits - 1) {
            int bit = __builtin_ctz(bits);
            int64_t at_count = piece->token - c->first + at + bit;
            float *to = &y[at - piece->low + bit];
            *to = gumbel_penalise(*to, &q, output >> bit & 1 ? counts[at_count] : 0);
        }
    }
}

/* -------------------------------------------------------------------------------- a piece ---- */

int cpu_edits_touch(const cpu_edits *e, const cpu_piece *piece)
{
    return e->problem && (is_masked(e, piece) || is_biased(e, piece) || is_penalised(e, piece));
}

void cpu_edits_transform(const cpu_edits *e, const cpu_kernels *kernels, const cpu_piece *piece,
                         const cpu_transform *t, float *z)
{
    int count = piece->high - piece->low;
    int biased = e->problem && is_biased(e, piece),
        penalised = e->problem && is_penalised(e, piece);
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
    if (e->problem && is_masked(e, piece))
        mask_piece(e, piece, z);
}
