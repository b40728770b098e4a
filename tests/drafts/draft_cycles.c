/* SPDX-License-Identifier: Apache-2.0 */
#include "draft_cycles.h"

#include "hostile.h"
#include "outcome.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5A

static void *allocate_owned(cycle *c, size_t count, size_t size)
{
    if (c->owned_count == (int)(sizeof c->owned / sizeof *c->owned))
        die("a cycle owns too much");
    return c->owned[c->owned_count++] = make_zeroed(count, size);
}

/* ------------------------------------------------------------------------- shape ---- */

/* Sets each request's number of nodes and its rows, with unused rows between requests. */
static void make_shape(cycle *c, uint64_t *random)
{
    const int32_t R = c->of->plan.requests, M = c->max_nodes;
    int padded = (int)random_below(random, 2);
    c->offsets = allocate_owned(c, (size_t)R + 1, sizeof *c->offsets);
    c->nodes = allocate_owned(c, (size_t)R, sizeof *c->nodes);
    for (int32_t r = 0; r < R; r++) {
        c->nodes[r] =
            random_below(random, 12) == 0 ? 0 : 1 + (int32_t)random_below(random, (uint32_t)M);
        int32_t rows = c->nodes[r] + (int32_t)random_below(random, (uint32_t)(M - c->nodes[r]) + 1);
        c->offsets[r + 1] = c->offsets[r] + (padded ? M : rows);
    }
    c->rows = c->offsets[R] + (int64_t)random_below(random, 3);
    c->draft.requests = R;
    c->draft.max_nodes = M;
    c->draft.nodes = c->nodes;
    c->draft.offsets = padded ? NULL : c->offsets;
}

/* The place in the text that a node's row draws. */
static int64_t depth_of(const cycle *c, int32_t r, int32_t j)
{
    int64_t depth = 0;
    for (; j > 0; depth++)
        j = c->draft.parents ? c->parents[c->offsets[r] + j] : j - 1;
    return depth;
}

static int32_t parent_of(const cycle *c, int32_t r, int32_t j)
{
    return c->draft.parents ? c->parents[c->offsets[r] + j] : j - 1;
}

/* A drafted token; usually the correct one if its preceding drafts are correct. */
static int32_t draft_token(const cycle *c, int32_t r, int64_t place, uint64_t *random)
{
    const texts *t = c->of;
    switch (random_below(random, 12)) {
    case 0:
        return -1;
    case 1:
        return (int32_t)t->plan.vocab + (int32_t)random_below(random, 2) * 100;
    case 2:
        return INT32_MAX;
    case 3:
    case 4:
        return (int32_t)random_below(random, (uint32_t)t->plan.vocab);
    }
    return place < t->plan.length ? t->tokens[r * t->plan.length + place] : 0;
}

static void make_nodes(cycle *c, const int32_t *progress, uint64_t *random)
{
    const int32_t R = c->of->plan.requests;
    int trees = random_below(random, 3) == 0;
    c->tokens = allocate_owned(c, (size_t)c->rows, sizeof *c->tokens);
    c->parents = allocate_owned(c, (size_t)c->rows, sizeof *c->parents);
    c->draft.tokens = c->tokens;
    c->draft.parents = trees ? c->parents : NULL;
    memset(c->tokens, POISON, (size_t)c->rows * sizeof *c->tokens);
    memset(c->parents, POISON, (size_t)c->rows * sizeof *c->parents);
    for (int32_t r = 0; r < R; r++)
        for (int32_t j = 1; j < c->nodes[r]; j++) {
            int64_t at = c->offsets[r] + j;
            c->parents[at] =
                random_below(random, 3) ? j - 1 : (int32_t)random_below(random, (uint32_t)j);
            c->tokens[at] = draft_token(c, r, progress[r] + depth_of(c, r, j) - 1, random);
        }
}

/* ------------------------------------------------------------------------- rows ---- */

/* Fills hidden states or logits, and masks; rows without a node are NaN with an empty mask. */
static void make_rows(cycle *c, const int32_t *progress)
{
    const texts *t = c->of;
    int64_t width = texts_width(t), words = texts_words(t);
    float *input = allocate_owned(c, (size_t)(c->rows * width), sizeof *input);
    c->input = input;
    c->mask = allocate_owned(c, (size_t)(c->rows * words), sizeof *c->mask);
    for (int64_t i = 0; i < c->rows * width; i++)
        input[i] = NAN;
    for (int32_t r = 0; r < t->plan.requests; r++)
        for (int32_t j = 0; j < c->nodes[r]; j++) {
            int64_t at = c->offsets[r] + j, place = progress[r] + depth_of(c, r, j);
            int32_t token = j > 0 ? c->tokens[at] : texts_token_before(t, r, place);
            texts_row(t, r, place, token, input + at * width);
            texts_mask(t, r, place, token, c->mask + at * words);
        }
    c->head = t->head;
    c->logits = t->logits;
    if (t->plan.hidden_size > 0)
        c->head.hidden = tensor_of(input, GUMBEL_FLOAT32, c->rows, width, 0);
    else
        c->logits.logits = tensor_of(input, GUMBEL_FLOAT32, c->rows, width, 0);
}

/* ------------------------------------------------------------------- parameters ---- */

/* Assigns slots to requests, or none. */
static void make_slots(cycle *c, uint64_t *random)
{
    const int32_t R = c->of->plan.requests;
    int32_t count = R + 3;
    c->slots = allocate_owned(c, (size_t)R, sizeof *c->slots);
    for (int32_t r = 0; r < R; r++)
        c->slots[r] = r;
    if (random_below(random, 2))
        return;
    int32_t first = (int32_t)random_below(random, (uint32_t)count);
    for (int32_t r = 0; r < R; r++)
        c->slots[r] = (first + 2 * count - r) % count;
    c->sampling.slots = (gumbel_slots){c->slots, count};
}

/* Copies the parameters of requests, [R], to their slots. */
static const void *copy_to_slots(cycle *c, const void *values, size_t size)
{
    size_t places =
        c->sampling.slots.of_row ? (size_t)c->sampling.slots.count : (size_t)c->of->plan.requests;
    char *generated = allocate_owned(c, places, size);
    memset(generated, POISON, places * size);
    for (int32_t r = 0; r < c->of->plan.requests; r++)
        memcpy(generated + (size_t)c->slots[r] * size, (const char *)values + (size_t)r * size,
               size);
    return generated;
}

#define TO_SLOTS(rows) (rows).data = copy_to_slots(c, (rows).data, sizeof *(rows).data)

static void make_history(cycle *c, const int32_t *progress)
{
    const texts *t = c->of;
    int64_t words = texts_words(t), vocab = t->plan.vocab, places = t->plan.requests + 3;
    uint16_t *counts = allocate_owned(c, (size_t)(places * vocab), sizeof *counts);
    c->history = (gumbel_history){.struct_size = sizeof c->history,
                                  .vocab_size = vocab,
                                  .prompt = allocate_owned(c, (size_t)(places * words), 4),
                                  .output = allocate_owned(c, (size_t)(places * words), 4),
                                  .counts = counts};
    for (int32_t r = 0; r < t->plan.requests; r++) {
        int64_t slot = c->slots[r];
        c->history.prompt[slot * words + t->prompts[r] / 32] |= 1u << t->prompts[r] % 32;
        for (int64_t i = 0; i < progress[r]; i++) {
            int32_t token = t->tokens[r * t->plan.length + i];
            c->history.output[slot * words + token / 32] |= 1u << token % 32;
            counts[slot * vocab + token]++;
        }
    }
    c->transforms.history = &c->history;
}

static void make_counted_lists(cycle *c, const int32_t *progress)
{
    const texts *t = c->of;
    const int32_t R = t->plan.requests;
    int64_t *prompts = allocate_owned(c, (size_t)R + 1, sizeof *prompts);
    int64_t *outputs = allocate_owned(c, (size_t)R + 1, sizeof *outputs);
    int32_t *ids = allocate_owned(c, (size_t)(R * t->plan.length), sizeof *ids);
    for (int32_t r = 0; r < R; r++) {
        prompts[r + 1] = r + 1;
        outputs[r + 1] = outputs[r] + progress[r];
        memcpy(ids + outputs[r], t->tokens + r * t->plan.length, (size_t)progress[r] * sizeof *ids);
    }
    c->transforms.prompt_tokens = (gumbel_token_lists){.offsets = prompts, .ids = t->prompts};
    c->transforms.output_tokens = (gumbel_token_lists){.offsets = outputs, .ids = ids};
}

static void make_parameters(cycle *c, const int32_t *progress, uint64_t *random)
{
    const texts *t = c->of;
    const int32_t R = t->plan.requests;
    gumbel_truncation *truncation = allocate_owned(c, 1, sizeof *truncation);
    uint64_t *position = allocate_owned(c, (size_t)R, sizeof *position);
    *truncation = t->truncation;
    c->sampling = t->sampling;
    c->transforms = t->transforms;
    make_slots(c, random);
    for (int32_t r = 0; r < R; r++)
        position[r] = t->sampling.position.data[r] + (uint64_t)progress[r];
    c->sampling.position.data = position;
    TO_SLOTS(c->sampling.position);
    TO_SLOTS(c->sampling.first_sample);
    TO_SLOTS(c->sampling.temperature);
    TO_SLOTS(c->sampling.seed);
    TO_SLOTS(truncation->min_p);
    TO_SLOTS(truncation->top_k);
    TO_SLOTS(truncation->top_p);
    TO_SLOTS(c->transforms.repetition);
    TO_SLOTS(c->transforms.frequency);
    TO_SLOTS(c->transforms.presence);
    c->transforms.mask = (gumbel_row_i32){c->mask, 0};
    if (t->plan.history)
        make_history(c, progress);
    else
        make_counted_lists(c, progress);
    c->sampling.transforms = t->plan.transforms ? &c->transforms : NULL;
    c->sampling.truncation = t->plan.truncation ? truncation : NULL;
    c->live_rows = R - (random_below(random, 3) == 0 ? (int32_t)random_below(random, 2) : 0);
    c->sampling.live_rows = c->live_rows < R ? &c->live_rows : NULL;
}

/* Sets limits and stop tokens; some stop tokens occur in the texts. */
static void make_ends(cycle *c, const int32_t *progress, uint64_t *random)
{
    const texts *t = c->of;
    const int32_t R = t->plan.requests;
    c->limit = allocate_owned(c, (size_t)R, sizeof *c->limit);
    c->stop_offsets = allocate_owned(c, (size_t)R + 1, sizeof *c->stop_offsets);
    c->stop_ids = allocate_owned(c, 3 * (size_t)R, sizeof *c->stop_ids);
    for (int32_t r = 0; r < R; r++) {
        int64_t at = progress[r] + random_below(random, 6);
        c->limit[r] = (int32_t)random_below(random, (uint32_t)c->max_nodes + 2);
        c->stop_offsets[r + 1] = c->stop_offsets[r] + (int64_t)random_below(random, 4);
        for (int64_t i = c->stop_offsets[r]; i < c->stop_offsets[r + 1]; i++)
            c->stop_ids[i] = at < t->plan.length ? t->tokens[r * t->plan.length + at++] : 0;
    }
    if (random_below(random, 3) == 0)
        c->draft.limit = c->limit;
    if (random_below(random, 3) == 0)
        c->draft.stop = (gumbel_token_lists){.offsets = c->stop_offsets, .ids = c->stop_ids};
}

/* ---------------------------------------------------------------------- expected results ---- */

static int is_stop_token(const cycle *c, int32_t r, int32_t token)
{
    for (int64_t i = c->stop_offsets[r]; c->draft.stop.offsets && i < c->stop_offsets[r + 1]; i++)
        if (c->stop_ids[i] == token)
            return 1;
    return 0;
}

/* Follows text r through its nodes, and sets the expected outputs. */
static void set_expected_result(cycle *c, const int32_t *progress, int32_t r)
{
    const texts *t = c->of;
    const int32_t *text = t->tokens + r * t->plan.length;
    int32_t limit = c->draft.limit ? c->limit[r] : c->max_nodes;
    c->status[r] = GUMBEL_ROW_OK;
    if (r >= c->live_rows || c->nodes[r] == 0)
        c->status[r] = GUMBEL_ROW_UNUSED;
    else if (limit == 0)
        c->finished[r] = GUMBEL_FINISHED_LIMIT;
    for (int32_t node = 0; c->status[r] == GUMBEL_ROW_OK && !c->finished[r];) {
        int32_t place = progress[r] + c->emitted[r], next = -1;
        if (place >= t->lengths[r]) {
            c->status[r] = t->ends[r];
            break;
        }
        c->path[r * c->max_nodes + c->emitted[r]++] = (int32_t)c->offsets[r] + node;
        if (is_stop_token(c, r, text[place]))
            c->finished[r] = GUMBEL_FINISHED_STOP;
        else if (c->draft.limit && c->emitted[r] == limit)
            c->finished[r] = GUMBEL_FINISHED_LIMIT;
        for (int32_t j = c->nodes[r] - 1; j > node; j--)
            if (parent_of(c, r, j) == node && c->tokens[c->offsets[r] + j] == text[place])
                next = j;
        if (next < 0)
            break;
        node = next;
    }
}

cycle *cycle_make(const texts *of, const int32_t *progress, uint64_t *random)
{
    const int32_t R = of->plan.requests;
    cycle *c = make_zeroed(1, sizeof *c);
    c->of = of;
    c->max_nodes = 1 + (int32_t)random_below(random, 9);
    c->draft.struct_size = sizeof c->draft;
    make_shape(c, random);
    make_nodes(c, progress, random);
    make_rows(c, progress);
    make_parameters(c, progress, random);
    make_ends(c, progress, random);
    c->emitted = allocate_owned(c, (size_t)R, sizeof *c->emitted);
    c->path = allocate_owned(c, (size_t)(R * c->max_nodes), sizeof *c->path);
    c->finished = allocate_owned(c, (size_t)R, sizeof *c->finished);
    c->status = allocate_owned(c, (size_t)R, sizeof *c->status);
    for (int32_t r = 0; r < R; r++)
        set_expected_result(c, progress, r);
    return c;
}

void cycle_set_rule(cycle *c, gumbel_rule rule, uint64_t *random)
{
    const int64_t width = texts_width(c->of);
    float *input = allocate_owned(c, (size_t)(c->rows * width), sizeof *input);
    for (int64_t i = 0; i < c->rows * width; i++)
        input[i] = ((const float *)c->input)[i] + 0.5f * random_normal(random);
    c->drafted = c->sampling;
    c->drafted.slots = (gumbel_slots){NULL, 0};
    c->drafted.live_rows = NULL;
    c->drafted.domain = GUMBEL_DOMAIN_DRAFT;
    c->draft_head = c->head;
    c->draft_head.hidden.data = input;
    c->draft_logits = c->logits;
    c->draft_logits.logits.data = input;
    c->draft.parents = NULL;
    c->draft.rule = rule;
    c->draft.sampling = &c->drafted;
    if (c->of->plan.hidden_size > 0)
        c->draft.head = &c->draft_head;
    else
        c->draft.logits = &c->draft_logits;
}

void cycle_free(cycle *c)
{
    for (int i = 0; i < c->owned_count; i++)
        free(c->owned[i]);
    free(c);
}
