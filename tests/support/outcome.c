/* SPDX-License-Identifier: Apache-2.0 */
#include "outcome.h"

#include "hostile.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xA7

int list_isas(gumbel_isa isas[4])
{
    int count = 0;
    for (gumbel_isa isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++)
        if (gumbel_isa_available(isa))
            isas[count++] = isa;
    return count;
}

gumbel_device *open_device(gumbel_isa isa, int32_t threads, int32_t tile)
{
    gumbel_device_options options = {
        .struct_size = sizeof options, .isa = isa, .threads = threads, .tile = tile};
    gumbel_device *device = NULL;
    gumbel_error error = {"", ""};
    if (gumbel_open(&options, &device, &error) != GUMBEL_OK)
        die("gumbel_open: %s: %s", error.field, error.message);
    return device;
}

outcome *outcome_make(int64_t batch, int32_t samples)
{
    outcome *generated = make_zeroed(1, sizeof *generated);
    size_t rows = (size_t)batch, draws = rows * (size_t)samples;
    generated->batch = batch;
    generated->samples = samples;
    generated->tokens = make_zeroed(draws, sizeof *generated->tokens);
    generated->logprobs = make_zeroed(draws, sizeof *generated->logprobs);
    generated->scores = make_zeroed(draws, sizeof *generated->scores);
    generated->lse = make_zeroed(rows, sizeof *generated->lse);
    generated->status = make_zeroed(rows, sizeof *generated->status);
    generated->output = (gumbel_output){.struct_size = sizeof generated->output,
                                        .tokens = generated->tokens,
                                        .logprobs = generated->logprobs,
                                        .scores = generated->scores,
                                        .lse = generated->lse,
                                        .status = generated->status};
    outcome_poison(generated);
    return generated;
}

void outcome_widen(outcome *generated, int32_t num_top, gumbel_distribution logprobs_of)
{
    size_t rows = (size_t)generated->batch, draws = rows * (size_t)generated->samples;
    size_t tops = rows * (size_t)num_top;
    generated->ranks = make_zeroed(draws, sizeof *generated->ranks);
    generated->kept = make_zeroed(rows, sizeof *generated->kept);
    generated->top_ids = make_zeroed(tops, sizeof *generated->top_ids);
    generated->top_logprobs = make_zeroed(tops, sizeof *generated->top_logprobs);
    generated->output.ranks = generated->ranks;
    generated->output.kept = generated->kept;
    generated->output.top_ids = generated->top_ids;
    generated->output.top_logprobs = generated->top_logprobs;
    generated->output.num_top = num_top;
    generated->output.logprobs_of = logprobs_of;
    outcome_poison(generated);
}

void outcome_list_kept(outcome *generated, int32_t capacity)
{
    size_t places = (size_t)generated->batch * (size_t)capacity;
    generated->kept_ids = make_zeroed(places, sizeof *generated->kept_ids);
    generated->kept_logprobs = make_zeroed(places, sizeof *generated->kept_logprobs);
    generated->output.kept_ids = generated->kept_ids;
    generated->output.kept_logprobs = generated->kept_logprobs;
    generated->output.kept_capacity = capacity;
    outcome_poison(generated);
}

void outcome_add_entropy(outcome *generated)
{
    generated->entropy = make_zeroed((size_t)generated->batch, sizeof *generated->entropy);
    generated->output.entropy = generated->entropy;
    outcome_poison(generated);
}

void outcome_free(outcome *generated)
{
    free(generated->entropy);
    free(generated->kept_ids);
    free(generated->kept_logprobs);
    free(generated->ranks);
    free(generated->kept);
    free(generated->top_ids);
    free(generated->top_logprobs);
    free(generated->tokens);
    free(generated->logprobs);
    free(generated->scores);
    free(generated->lse);
    free(generated->status);
    free(generated);
}

/* Lengths of the outputs of outcome_widen(), outcome_list_kept() and outcome_add_entropy(); 0 until
 * these are called. */
typedef struct further {
    size_t ranks, kept, tops, places, entropies;
} further;

static further count_further(const outcome *generated)
{
    size_t rows = generated->kept ? (size_t)generated->batch : 0;
    return (further){rows * (size_t)generated->samples, rows,
                     rows * (size_t)generated->output.num_top,
                     rows * (size_t)generated->output.kept_capacity,
                     generated->entropy ? (size_t)generated->batch : 0};
}

static void poison_memory(void *memory, size_t count)
{
    if (count)
        memset(memory, POISON, count * 4);
}

void outcome_poison(outcome *generated)
{
    size_t rows = (size_t)generated->batch, draws = rows * (size_t)generated->samples;
    further more = count_further(generated);
    poison_memory(generated->ranks, more.ranks);
    poison_memory(generated->kept, more.kept);
    poison_memory(generated->top_ids, more.tops);
    poison_memory(generated->top_logprobs, more.tops);
    poison_memory(generated->kept_ids, more.places);
    poison_memory(generated->kept_logprobs, more.places);
    poison_memory(generated->entropy, more.entropies);
    poison_memory(generated->tokens, draws);
    poison_memory(generated->logprobs, draws);
    poison_memory(generated->scores, draws);
    poison_memory(generated->lse, rows);
    poison_memory(generated->status, rows);
}

static int is_poison(const void *memory, size_t count)
{
    for (size_t i = 0; i < count * 4; i++)
        if (((const unsigned char *)memory)[i] != POISON)
            return 0;
    return 1;
}

int outcome_untouched(const outcome *generated)
{
    size_t rows = (size_t)generated->batch, draws = rows * (size_t)generated->samples;
    further more = count_further(generated);
    return is_poison(generated->tokens, draws) && is_poison(generated->logprobs, draws) &&
           is_poison(generated->scores, draws) && is_poison(generated->lse, rows) &&
           is_poison(generated->status, rows) && is_poison(generated->ranks, more.ranks) &&
           is_poison(generated->kept, more.kept) && is_poison(generated->top_ids, more.tops) &&
           is_poison(generated->top_logprobs, more.tops) &&
           is_poison(generated->kept_ids, more.places) &&
           is_poison(generated->kept_logprobs, more.places) &&
           is_poison(generated->entropy, more.entropies);
}

static int same_ints(const int32_t *a, const int32_t *b, size_t count, const char *name,
                     const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i]) {
            printf("%s: %s[%zu] is %d in one and %d in the other\n", what, name, i, (int)a[i],
                   (int)b[i]);
            return 0;
        }
    return 1;
}

static int same_floats(const float *a, const float *b, size_t count, const char *name,
                       const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            printf("%s: %s[%zu] is %a in one and %a in the other\n", what, name, i, (double)a[i],
                   (double)b[i]);
            return 0;
        }
    return 1;
}

static int same_further(const outcome *whole, size_t row, const outcome *other, const char *what)
{
    further count = count_further(other);
    size_t draw = row * (size_t)whole->samples, top = row * (size_t)whole->output.num_top;
    size_t place = row * (size_t)whole->output.kept_capacity;
    return same_ints(whole->kept + row, other->kept, count.kept, "kept", what) &&
           same_ints(whole->ranks + draw, other->ranks, count.ranks, "ranks", what) &&
           same_ints(whole->top_ids + top, other->top_ids, count.tops, "top_ids", what) &&
           same_floats(whole->top_logprobs + top, other->top_logprobs, count.tops, "top_logprobs",
                       what) &&
           same_ints(whole->kept_ids + place, other->kept_ids, count.places, "kept_ids", what) &&
           same_floats(whole->kept_logprobs + place, other->kept_logprobs, count.places,
                       "kept_logprobs", what) &&
           (count.entropies == 0 ||
            same_floats(whole->entropy + row, other->entropy, count.entropies, "entropy", what));
}

int outcome_same(const outcome *whole, int64_t first, const outcome *other, outcome_parts parts,
                 const char *what)
{
    size_t rows = (size_t)other->batch, draws = rows * (size_t)other->samples;
    size_t row = (size_t)first, at = row * (size_t)whole->samples;
    int same = 1;
    if (parts & OUTCOME_TOKENS)
        same = same_ints(whole->status + row, other->status, rows, "status", what) &&
               same_ints(whole->tokens + at, other->tokens, draws, "tokens", what);
    if (same && parts & OUTCOME_SCORES)
        same = same_floats(whole->scores + at, other->scores, draws, "scores", what);
    if (same && parts & OUTCOME_MASS)
        same = same_floats(whole->lse + row, other->lse, rows, "lse", what) &&
               same_floats(whole->logprobs + at, other->logprobs, draws, "logprobs", what);
    if (same && parts & OUTCOME_FURTHER && other->kept)
        same = same_further(whole, row, other, what);
    return same;
}

void *poisoned_workspace(size_t bytes)
{
    void *workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!workspace)
        die("no memory for a workspace of %zu bytes", bytes);
    hostile_fill(workspace, bytes);
    return workspace;
}

void *make_workspace(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                     int32_t samples, size_t *bytes)
{
    gumbel_error error = {"", ""};
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = batch,
                                  .hidden_size = hidden_size,
                                  .num_samples = samples};
    if (gumbel_workspace_most(device, &limits, bytes, &error) != GUMBEL_OK)
        die("gumbel_workspace_most: %s: %s", error.field, error.message);
    return poisoned_workspace(*bytes);
}

gumbel_status report_call(const char *call, gumbel_status status, const gumbel_error *error)
{
    if (status != GUMBEL_OK)
        printf("%s: %s: %s: %s\n", call, gumbel_status_string(status), error->field,
               error->message);
    return status;
}

static int32_t samples_of(const gumbel_sampling *sampling)
{
    return sampling && sampling->num_samples ? sampling->num_samples : 1;
}

/* Whether a call is more than a plain one, in the sense of gumbel_limits.requests. */
static int is_request(const gumbel_sampling *s, const gumbel_output *o)
{
    return !o || o->ranks || o->kept || o->num_top > 0 || o->num_best > 0 || o->entropy ||
           o->logprobs_of == GUMBEL_RAW ||
           (s && (s->transforms || s->truncation || s->noise || s->given.data || s->token_ids));
}

/* A call's size must not exceed gumbel_workspace_most() for the limits that the call satisfies. */
static void check_most(const gumbel_device *device, const gumbel_head *head,
                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                       const gumbel_output *output, size_t bytes)
{
    gumbel_error error = {"", ""};
    gumbel_limits limits = {.struct_size = sizeof limits,
                            .batch = head ? head->hidden.rows : logits->logits.rows,
                            .vocab_size = head ? head->weight.rows : logits->logits.cols,
                            .hidden_size = head ? head->hidden.cols : 0,
                            .num_samples = samples_of(sampling),
                            .requests = is_request(sampling, output),
                            .screens = head && head->screen.data,
                            .token_ids = sampling && sampling->token_ids};
    size_t most = 0;
    if (gumbel_workspace_most(device, &limits, &most, &error) != GUMBEL_OK)
        die("gumbel_workspace_most: %s: %s", error.field, error.message);
    if (bytes > most)
        die("a call takes %zu bytes, gumbel_workspace_most() is %zu", bytes, most);
}

void *call_workspace(const gumbel_device *device, const gumbel_head *head,
                     const gumbel_logits *logits, const gumbel_sampling *sampling,
                     const gumbel_output *output, size_t *bytes)
{
    gumbel_error error = {"", ""};
    *bytes = 1 << 16; /* if the call returns an error */
    if (gumbel_workspace_size(device, head, logits, sampling, output, bytes, &error) == GUMBEL_OK)
        check_most(device, head, logits, sampling, output, *bytes);
    return poisoned_workspace(*bytes);
}

gumbel_status draw(gumbel_device *device, const gumbel_head *head, const gumbel_sampling *sampling,
                   outcome *into)
{
    size_t bytes;
    void *workspace = call_workspace(device, head, NULL, sampling, &into->output, &bytes);
    outcome_poison(into);
    gumbel_status status =
        gumbel_sample(device, NULL, head, sampling, &into->output, workspace, bytes, &into->error);
    free(workspace);
    return report_call("gumbel_sample", status, &into->error);
}

gumbel_status draw_logits(gumbel_device *device, const gumbel_logits *logits,
                          const gumbel_sampling *sampling, outcome *into)
{
    size_t bytes;
    void *workspace = call_workspace(device, NULL, logits, sampling, &into->output, &bytes);
    outcome_poison(into);
    gumbel_status status = gumbel_sample_logits(device, NULL, logits, sampling, &into->output,
                                                workspace, bytes, &into->error);
    free(workspace);
    return report_call("gumbel_sample_logits", status, &into->error);
}

gumbel_summary *summarise(gumbel_device *device, const gumbel_head *head,
                          const gumbel_logits *logits, const gumbel_sampling *sampling)
{
    int64_t batch = head ? head->hidden.rows : logits->logits.rows;
    int32_t samples = samples_of(sampling);
    size_t bytes;
    void *workspace = call_workspace(device, head, logits, sampling, NULL, &bytes);
    gumbel_summary *generated = make_zeroed((size_t)batch * (size_t)samples, sizeof *generated);
    gumbel_error error = {"", ""};
    gumbel_status status =
        head ? gumbel_partial(device, NULL, head, sampling, generated, workspace, bytes, &error)
             : gumbel_partial_logits(device, NULL, logits, sampling, generated, workspace, bytes,
                                     &error);
    free(workspace);
    if (status != GUMBEL_OK)
        die("gumbel_partial: %s: %s", error.field, error.message);
    return generated;
}
