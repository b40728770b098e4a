/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of tokens sorted at the start of a call, so that a piece finds its own: bans into bits,
 * biases by blocks, prompts and outputs into a history. Some ns a listed id, and memory that only
 * the vocabulary's size decides.
 */
#include "cpu/call/cpu_edits.h"
#include "core/fail.h"
#include "cpu/cpu_policy.h"

#include <stdatomic.h>

/* What becomes banned bits. */
#define BANS (GUMBEL_REQUEST_BANNED | GUMBEL_REQUEST_ALLOWED)

/* The parts of the edits that are written here. */
typedef struct cpu_lists {
    const cpu_edits *edits;
    uint32_t *prompt, *output; /* [B, 2 * blocks] */
    uint16_t *counts;          /* [B, 64 * blocks] */
    _Atomic int64_t next;      /* row to claim */
} cpu_lists;

static int lists_are_counted(const gumbel_problem *p)
{
    return p->request & GUMBEL_REQUEST_PENALTIES && (!p->history.prompt || p->with_path);
}

static void carve(gumbel_cursor *cursor, const gumbel_problem *p, cpu_edits *e, cpu_lists *lists)
{
    size_t batch = (size_t)p->batch, blocks;
    size_t banned = p->request & BANS ? batch : 0;
    size_t biased = p->request & GUMBEL_REQUEST_BIAS ? batch : 0;
    size_t counted = lists_are_counted(p) ? batch : 0;
    e->base = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    e->blocks = (p->first_token + p->vocab - e->base + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK;
    blocks = (size_t)e->blocks;
    GUMBEL_ASSERT(e->blocks >= 0 && e->base <= p->first_token);
    e->banned = gumbel_carve_array(cursor, banned, 2 * blocks, sizeof *e->banned);
    e->bias_ends = gumbel_carve_array(cursor, biased, blocks, sizeof *e->bias_ends);
    e->bias_order = gumbel_carve_array(cursor, biased, CPU_BIASES * blocks, sizeof *e->bias_order);
    lists->prompt = gumbel_carve_array(cursor, counted, 2 * blocks, sizeof *lists->prompt);
    lists->output = gumbel_carve_array(cursor, counted, 2 * blocks, sizeof *lists->output);
    lists->counts =
        gumbel_carve_array(cursor, counted, GUMBEL_BLOCK * blocks, sizeof *lists->counts);
}

size_t cpu_edits_size(const gumbel_problem *p)
{
    gumbel_cursor cursor = {0};
    cpu_edits edits;
    cpu_lists lists;
    carve(&cursor, p, &edits, &lists);
    return cursor.used;
}

/* Where token `id` stands from the base on; 64 * blocks or more in other shards. */
static uint64_t place_of(const cpu_edits *e, int32_t id) { return (uint64_t)(id - e->base); }

/* Clear the bits of all tokens, or set them. */
static void fill_bits(const cpu_edits *e, uint32_t *bits, int value)
{
    memset(bits, value ? 0xff : 0, 2 * (size_t)e->blocks * sizeof *bits);
}

/* Ban what row b's list of allowed ids has not, where that is not empty. */
static void ban_others(const cpu_edits *e, const gumbel_token_lists *allowed, int64_t b,
                       uint32_t *bits)
{
    int restricts = allowed->offsets && allowed->offsets[b] < allowed->offsets[b + 1];
    fill_bits(e, bits, restricts);
    for (int64_t i = restricts ? allowed->offsets[b] : 0; restricts && i < allowed->offsets[b + 1];
         i++) {
        uint64_t at = place_of(e, allowed->ids[i]);
        if (at < (uint64_t)e->blocks * GUMBEL_BLOCK)
            bits[at >> 5] &= ~(1u << (at & 31));
    }
}

/* Set the bits of row b's ids. */
static void set_bits(const cpu_edits *e, const gumbel_token_lists *lists, int64_t b, uint32_t *bits)
{
    if (!lists->offsets)
        return;
    for (int64_t i = lists->offsets[b]; i < lists->offsets[b + 1]; i++) {
        uint64_t at = place_of(e, lists->ids[i]);
        if (at < (uint64_t)e->blocks * GUMBEL_BLOCK)
            bits[at >> 5] |= 1u << (at & 31);
    }
}

/* The counts of a row's ids are 0; those that no id names are left as they are. */
static void clear_counts(const cpu_edits *e, const gumbel_token_lists *lists, int64_t b,
                         uint16_t *counts)
{
    uint64_t tokens = (uint64_t)e->blocks * GUMBEL_BLOCK;
    for (int64_t i = lists->offsets ? lists->offsets[b] : 0;
         lists->offsets && i < lists->offsets[b + 1]; i++) {
        uint64_t at = place_of(e, lists->ids[i]);
        if (at < tokens)
            counts[at] = 0;
    }
}

static void count_ids(const cpu_edits *e, const gumbel_token_lists *lists, int64_t b,
                      uint16_t *counts)
{
    uint64_t tokens = (uint64_t)e->blocks * GUMBEL_BLOCK;
    for (int64_t i = lists->offsets ? lists->offsets[b] : 0;
         lists->offsets && i < lists->offsets[b + 1]; i++) {
        uint64_t at = place_of(e, lists->ids[i]);
        if (at < tokens && counts[at] < GUMBEL_COUNT_MOST)
            counts[at]++;
    }
}

/* Sort row b's biases by blocks, counting; equals stay in the list's order. */
static void sort_biases(const cpu_edits *e, int64_t b)
{
    const gumbel_token_lists *bias = &e->problem->transforms.bias;
    int64_t list = gumbel_problem_list_of_row(e->problem, b);
    const int32_t *ids = bias->ids + bias->offsets[list];
    int64_t length = bias->offsets[list + 1] - bias->offsets[list];
    GUMBEL_ASSERT(length >= 0 && list >= 0);
    uint64_t blocks = (uint64_t)e->blocks;
    uint32_t *ends = e->bias_ends + b * e->blocks;
    uint32_t *order = e->bias_order + b * e->blocks * CPU_BIASES;
    uint32_t begin = 0;
    memset(ends, 0, (size_t)e->blocks * sizeof *ends);
    for (int64_t i = 0; i < length && i < INT32_MAX; i++) {
        uint64_t block = place_of(e, ids[i]) / GUMBEL_BLOCK;
        if (block < blocks)
            ends[block]++;
    }
    for (uint64_t k = 0; k < blocks; k++) {
        uint32_t count = ends[k];
        ends[k] = begin; /* moves to the end as the block fills */
        begin += count;
        GUMBEL_ASSERT(begin >= count);
    }
    if (length >= INT32_MAX || begin > blocks * CPU_BIASES) {
        ends[0] = CPU_BIASES_UNSORTED;
        return;
    }
    for (int64_t i = 0; i < length; i++) {
        uint64_t block = place_of(e, ids[i]) / GUMBEL_BLOCK;
        if (block < blocks)
            order[ends[block]++] = (uint32_t)i;
    }
}

/* What the lists of row b say of the prompt and the output. */
static void count_row(const cpu_lists *lists, int64_t b)
{
    const cpu_edits *e = lists->edits;
    const gumbel_transforms *t = &e->problem->transforms;
    const gumbel_token_lists *path = &e->problem->path;
    int64_t list = gumbel_problem_list_of_row(e->problem, b);
    uint32_t *prompt = lists->prompt + b * 2 * e->blocks,
             *output = lists->output + b * 2 * e->blocks;
    uint16_t *counts = lists->counts + b * e->blocks * GUMBEL_BLOCK;
    GUMBEL_ASSERT(b >= 0 && b < e->problem->batch);
    GUMBEL_ASSERT(lists->prompt && lists->output);
    fill_bits(e, prompt, 0);
    fill_bits(e, output, 0);
    set_bits(e, &t->prompt_tokens, list, prompt);
    set_bits(e, &t->output_tokens, list, output);
    set_bits(e, path, b, output);
    clear_counts(e, &t->output_tokens, list, counts);
    clear_counts(e, path, b, counts);
    count_ids(e, &t->output_tokens, list, counts);
    count_ids(e, path, b, counts);
}

/* One thread's share: claim rows until none is left. */
static void sort_rows(void *argument, int32_t index)
{
    cpu_lists *lists = argument;
    const cpu_edits *e = lists->edits;
    const gumbel_transforms *t = &e->problem->transforms;
    (void)index;
    for (int64_t b; (b = atomic_fetch_add_explicit(&lists->next, 1, memory_order_relaxed)) <
                    e->problem->batch;) {
        int64_t list = gumbel_problem_list_of_row(e->problem, b);
        if (e->banned) {
            ban_others(e, &t->allowed, list, e->banned + b * 2 * e->blocks);
            set_bits(e, &t->banned, list, e->banned + b * 2 * e->blocks);
        }
        if (e->bias_ends)
            sort_biases(e, b);
        if (lists->counts)
            count_row(lists, b);
    }
}

/* What was made of lists. */
static cpu_counted counted_lists(const cpu_edits *e, const cpu_lists *lists)
{
    return (cpu_counted){.history = {.vocab_size = e->blocks * GUMBEL_BLOCK,
                                     .prompt = lists->prompt,
                                     .output = lists->output,
                                     .counts = lists->counts,
                                     .count_bits = 16},
                         .first = e->base,
                         .words = 2 * e->blocks,
                         .by_row = 1};
}

void cpu_edits_prepare(cpu_edits *e, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    cpu_lists lists = {.edits = e};
    *e = (cpu_edits){0};
    if (!(p->request & GUMBEL_REQUEST_TRANSFORMS))
        return;
    carve(&cursor, p, e, &lists);
    e->problem = p;
    if (!(p->request & BANS))
        e->banned = NULL;
    if (!(p->request & GUMBEL_REQUEST_BIAS))
        e->bias_ends = e->bias_order = NULL;
    if (p->request & GUMBEL_REQUEST_PENALTIES && p->history.prompt)
        e->counted[e->sources++] = (cpu_counted){
            .history = p->history, .words = gumbel_mask_words_of(p->history.vocab_size)};
    if (lists_are_counted(p))
        e->counted[e->sources++] = counted_lists(e, &lists);
    else
        lists.counts = NULL;
    GUMBEL_ASSERT(e->sources <= 2);
    GUMBEL_ASSERT(!(p->request & GUMBEL_REQUEST_PENALTIES) || e->sources > 0);
    if (e->banned || e->bias_ends || lists.counts)
        cpu_run_task(cpu, p->batch >= CPU_PARALLEL_LISTS, sort_rows, &lists);
}
