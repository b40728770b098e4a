/* SPDX-License-Identifier: Apache-2.0
 *
 * Sorts token lists at the start of a call, so that a tile finds its own tokens: bans into bits,
 * biases by blocks, prompts and outputs into a history. Costs some ns for each listed id, and
 * memory that depends on the vocabulary alone.
 */
#include "cpu/call/cpu_edits.h"
#include "core/fail.h"
#include "cpu/cpu_policy.h"

/* Requests that set banned bits. */
#define BANS (GUMBEL_FEATURE_BANNED | GUMBEL_FEATURE_ALLOWED)

typedef struct cpu_lists_job {
    const cpu_edits *edits;
    uint32_t *prompt, *output; /* [B, 2 * blocks] */
    uint16_t *counts;          /* [B, 64 * blocks] */
    _Atomic int64_t next;      /* row to claim */
} cpu_lists_job;

/* Whether penalties count lists: the caller's, or the path of drafts beside a history. */
static int are_lists_counted(const gumbel_problem *p)
{
    return p->features & GUMBEL_FEATURE_PENALTIES && (!p->history.prompt || p->with_path);
}

static cpu_biases carve_biases(gumbel_cursor *cursor, const gumbel_problem *p,
                               const gumbel_token_lists *lists, uint32_t feature, size_t blocks)
{
    const int requested = (p->features & feature) != 0;
    const size_t batch = requested ? (size_t)p->batch : 0;
    cpu_biases biases = {.lists = lists};
    biases.ends = gumbel_carve_array(cursor, batch, blocks, sizeof *biases.ends);
    biases.order = gumbel_carve_array(cursor, batch, CPU_BIASES * blocks, sizeof *biases.order);
    return requested ? biases : (cpu_biases){0};
}

static void carve_edits(gumbel_cursor *cursor, const gumbel_problem *p, cpu_edits *e,
                        cpu_lists_job *job)
{
    size_t batch = (size_t)p->batch, blocks;
    size_t banned = p->features & BANS ? batch : 0;
    size_t counted = are_lists_counted(p) ? batch : 0;
    e->base = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    e->blocks = (p->first_token + p->vocab - e->base + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK;
    blocks = (size_t)e->blocks;
    GUMBEL_ASSERT(e->blocks >= 0 && e->base <= p->first_token);
    e->banned = gumbel_carve_array(cursor, banned, 2 * blocks, sizeof *e->banned);
    e->bias = carve_biases(cursor, p, &p->transforms.bias, GUMBEL_FEATURE_BIAS, blocks);
    e->late_bias =
        carve_biases(cursor, p, &p->transforms.late_bias, GUMBEL_FEATURE_LATE_BIAS, blocks);
    job->prompt = gumbel_carve_array(cursor, counted, 2 * blocks, sizeof *job->prompt);
    job->output = gumbel_carve_array(cursor, counted, 2 * blocks, sizeof *job->output);
    job->counts = gumbel_carve_array(cursor, counted, GUMBEL_BLOCK * blocks, sizeof *job->counts);
}

size_t cpu_count_edits_workspace(const gumbel_problem *p)
{
    gumbel_cursor cursor = {0};
    cpu_edits edits;
    cpu_lists_job job;
    carve_edits(&cursor, p, &edits, &job);
    return cursor.used;
}

/* Finds the index of token `id` from the base on; returns 0 if it is in another shard. */
static int find_place(const cpu_edits *e, int32_t id, uint64_t *at)
{
    *at = (uint64_t)(id - e->base);
    return *at < (uint64_t)e->blocks * GUMBEL_BLOCK;
}

static void fill_bits(const cpu_edits *e, uint32_t *bits, int value)
{
    memset(bits, value ? 0xff : 0, 2 * (size_t)e->blocks * sizeof *bits);
}

/* Bans all tokens that the list of allowed ids lacks, if it is not empty. */
static void ban_tokens_not_allowed(const cpu_edits *e, cpu_list allowed, uint32_t *bits)
{
    uint64_t at;
    fill_bits(e, bits, allowed.count > 0);
    for (int64_t i = 0; i < allowed.count; i++)
        if (find_place(e, allowed.ids[i], &at))
            bits[at >> 5] &= ~(1u << (at & 31));
}

static void set_token_bits(const cpu_edits *e, cpu_list list, uint32_t *bits)
{
    uint64_t at;
    for (int64_t i = 0; i < list.count; i++)
        if (find_place(e, list.ids[i], &at))
            bits[at >> 5] |= 1u << (at & 31);
}

/* Sets the counts of the listed ids to 0; all other counts stay undefined. */
static void clear_counts(const cpu_edits *e, cpu_list list, uint16_t *counts)
{
    uint64_t at;
    for (int64_t i = 0; i < list.count; i++)
        if (find_place(e, list.ids[i], &at))
            counts[at] = 0;
}

static void count_tokens(const cpu_edits *e, cpu_list list, uint16_t *counts)
{
    uint64_t at;
    for (int64_t i = 0; i < list.count; i++)
        if (find_place(e, list.ids[i], &at) && counts[at] < GUMBEL_COUNT_MAX)
            counts[at]++;
}

/* Sorts row b's biases by blocks, in a counting sort that keeps the order of the list. */
static void sort_biases(const cpu_edits *e, const cpu_biases *biases, int64_t b)
{
    cpu_list list = cpu_get_list(biases->lists, gumbel_problem_list_of_row(e->problem, b));
    uint64_t blocks = (uint64_t)e->blocks, at;
    uint32_t *ends = biases->ends + b * e->blocks;
    uint32_t *order = biases->order + b * e->blocks * CPU_BIASES;
    uint32_t begin = 0;
    GUMBEL_ASSERT(list.count >= 0);
    memset(ends, 0, (size_t)e->blocks * sizeof *ends);
    for (int64_t i = 0; i < list.count && i < INT32_MAX; i++)
        if (find_place(e, list.ids[i], &at))
            ends[at / GUMBEL_BLOCK]++;
    for (uint64_t k = 0; k < blocks; k++) {
        uint32_t count = ends[k];
        ends[k] = begin; /* moves to the end as the block fills */
        begin += count;
        GUMBEL_ASSERT(begin >= count);
    }
    if (list.count >= INT32_MAX || begin > blocks * CPU_BIASES) {
        ends[0] = CPU_BIASES_UNSORTED;
        return;
    }
    for (int64_t i = 0; i < list.count; i++)
        if (find_place(e, list.ids[i], &at))
            order[ends[at / GUMBEL_BLOCK]++] = (uint32_t)i;
}

/* Makes the history of row b from its lists. */
static void count_row_tokens(const cpu_lists_job *job, int64_t b)
{
    const cpu_edits *e = job->edits;
    const gumbel_transforms *t = &e->problem->transforms;
    int64_t list = gumbel_problem_list_of_row(e->problem, b);
    cpu_list prompt_ids = cpu_get_list(&t->prompt_tokens, list);
    cpu_list output_ids = cpu_get_list(&t->output_tokens, list);
    cpu_list path = cpu_get_list(&e->problem->path, b);
    uint32_t *prompt = job->prompt + b * 2 * e->blocks, *output = job->output + b * 2 * e->blocks;
    uint16_t *counts = job->counts + b * e->blocks * GUMBEL_BLOCK;
    GUMBEL_ASSERT(b >= 0 && b < e->problem->batch);
    GUMBEL_ASSERT(job->prompt && job->output);
    fill_bits(e, prompt, 0);
    fill_bits(e, output, 0);
    set_token_bits(e, prompt_ids, prompt);
    set_token_bits(e, output_ids, output);
    set_token_bits(e, path, output);
    clear_counts(e, output_ids, counts);
    clear_counts(e, path, counts);
    count_tokens(e, output_ids, counts);
    count_tokens(e, path, counts);
}

static void sort_claimed_rows(void *argument, int32_t thread)
{
    cpu_lists_job *job = argument;
    const cpu_edits *e = job->edits;
    const gumbel_transforms *t = &e->problem->transforms;
    (void)thread;
    for (int64_t b; cpu_claim_item(&job->next, e->problem->batch, &b);) {
        int64_t list = gumbel_problem_list_of_row(e->problem, b);
        if (e->banned) {
            uint32_t *banned = e->banned + b * 2 * e->blocks;
            ban_tokens_not_allowed(e, cpu_get_list(&t->allowed, list), banned);
            set_token_bits(e, cpu_get_list(&t->banned, list), banned);
        }
        if (e->bias.ends)
            sort_biases(e, &e->bias, b);
        if (e->late_bias.ends)
            sort_biases(e, &e->late_bias, b);
        if (job->counts)
            count_row_tokens(job, b);
    }
}

static cpu_counted_tokens make_counted_lists(const cpu_edits *e, const cpu_lists_job *job)
{
    return (cpu_counted_tokens){.history = {.vocab_size = e->blocks * GUMBEL_BLOCK,
                                            .prompt = job->prompt,
                                            .output = job->output,
                                            .counts = job->counts,
                                            .count_bits = 16},
                                .first = e->base,
                                .words = 2 * e->blocks,
                                .by_row = 1};
}

void cpu_prepare_edits(cpu_edits *e, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    cpu_lists_job job = {.edits = e};
    *e = (cpu_edits){0};
    if (!(p->features & GUMBEL_FEATURE_TRANSFORMS))
        return;
    carve_edits(&cursor, p, e, &job);
    e->problem = p;
    if (!(p->features & BANS))
        e->banned = NULL;
    if (p->features & GUMBEL_FEATURE_PENALTIES && p->history.prompt)
        e->counted[e->sources++] = (cpu_counted_tokens){
            .history = p->history, .words = gumbel_mask_words_of(p->history.vocab_size)};
    if (are_lists_counted(p))
        e->counted[e->sources++] = make_counted_lists(e, &job);
    else
        job.counts = NULL;
    GUMBEL_ASSERT(e->sources <= 2);
    GUMBEL_ASSERT(!(p->features & GUMBEL_FEATURE_PENALTIES) || e->sources > 0);
    if (e->banned || e->bias.ends || e->late_bias.ends || job.counts)
        cpu_run_task(cpu, p->batch >= CPU_PARALLEL_LISTS, sort_claimed_rows, &job);
}
