/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on a GPU and their comparison with the CPU's (cuda_support.h).
 */
#include "cuda_support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int64_t draws_compared, near_ties;

/* ----------------------------------------------------------------------------------- draws ---- */

/* A workspace of exactly the reported size; `output` is NULL for summaries. */
static void *gpu_workspace(const gumbel_head *head, const gumbel_logits *logits,
                           const gumbel_sampling *sampling, const gumbel_output *output,
                           size_t *bytes)
{
    gumbel_error error = {"", ""};
    if (gumbel_workspace_size(gpu, head, logits, sampling, output, bytes, &error) != GUMBEL_OK)
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    return gpu_hostile(*bytes);
}

void gpu_draw(const gumbel_head *head, const gumbel_logits *logits, const gumbel_sampling *sampling,
              outcome_parts parts, outcome *into)
{
    size_t rows = (size_t)into->batch, draws = rows * (size_t)into->samples, bytes;
    gumbel_output out = {
        .struct_size = sizeof out,
        .tokens = gpu_make(draws * sizeof(int32_t)),
        .logprobs = parts & OUTCOME_MASS ? gpu_make(draws * sizeof(float)) : NULL,
        .scores = gpu_make(draws * sizeof(float)),
        .lse = parts & OUTCOME_MASS ? gpu_make(rows * sizeof(float)) : NULL,
        .status = gpu_make(rows * sizeof(int32_t)),
    };
    void *workspace = gpu_workspace(head, head ? NULL : logits, sampling, &out, &bytes);
    gumbel_error error = {"", ""};
    gumbel_status status =
        head ? gumbel_sample(gpu, NULL, head, sampling, &out, workspace, bytes, &error)
             : gumbel_sample_logits(gpu, NULL, logits, sampling, &out, workspace, bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(into->tokens, out.tokens, draws * sizeof(int32_t));
    gpu_fetch(into->scores, out.scores, draws * sizeof(float));
    gpu_fetch(into->status, out.status, rows * sizeof(int32_t));
    if (parts & OUTCOME_MASS) {
        gpu_fetch(into->logprobs, out.logprobs, draws * sizeof(float));
        gpu_fetch(into->lse, out.lse, rows * sizeof(float));
    }
    gpu_free(out.tokens);
    gpu_free(out.logprobs);
    gpu_free(out.scores);
    gpu_free(out.lse);
    gpu_free(out.status);
    gpu_free(workspace);
}

void make_noise(gumbel_device *device, void *stream, const gumbel_sampling *sampling, int64_t batch,
                int64_t first_token, int64_t count, float *noise, int64_t stride)
{
    gumbel_error error = {"", ""};
    if (gumbel_prepare_noise(device, stream, sampling, batch, first_token, count, noise, stride,
                             &error) != GUMBEL_OK)
        die("gumbel_prepare_noise: %s: %s", error.field, error.message);
}

gumbel_summary *gpu_summarise(const gumbel_head *head, const gumbel_logits *logits,
                              const gumbel_sampling *sampling)
{
    int64_t batch = head ? head->hidden.rows : logits->logits.rows;
    int32_t samples = sampling->num_samples ? sampling->num_samples : 1;
    size_t count = (size_t)batch * (size_t)samples, bytes;
    void *workspace = gpu_workspace(head, logits, sampling, NULL, &bytes);
    gumbel_summary *generated = make_zeroed(count, sizeof *generated);
    gumbel_summary *on_gpu = gpu_make(count * sizeof *generated);
    gumbel_error error = {"", ""};
    gumbel_status status =
        head ? gumbel_partial(gpu, NULL, head, sampling, on_gpu, workspace, bytes, &error)
             : gumbel_partial_logits(gpu, NULL, logits, sampling, on_gpu, workspace, bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(generated, on_gpu, count * sizeof *generated);
    gpu_free(on_gpu);
    gpu_free(workspace);
    return generated;
}

/* ------------------------------------------------------------------------------ comparison ---- */

static int is_aligned(int64_t elements, gumbel_dtype dtype)
{
    return elements * (int64_t)dtype_size(dtype) % 16 == 0;
}

int is_exact(const problem_plan *p)
{
    int hopper = p->weight_dtype != GUMBEL_FLOAT32 && p->vocab % 16 == 0 &&
                 p->hidden_size % 8 == 0 && p->first_token % 4 == 0;
    return p->weight_dtype != p->hidden_dtype || p->samples > (hopper ? 32 : 16) ||
           !is_aligned(p->hidden_size + p->weight_gap, p->weight_dtype) ||
           !is_aligned(p->hidden_size + p->hidden_gap, p->hidden_dtype);
}

static float largest_of_1(float x, float y) { return fmaxf(1, fmaxf(fabsf(x), fabsf(y))); }

static int near(float x, float y, float scale, float bound)
{
    return (isnan(x) && isnan(y)) || x == y || fabsf(x - y) <= bound * scale;
}

static int compare_draw(const outcome *host, const outcome *device, outcome_parts parts, int exact,
                        size_t at, const char *what)
{
    float theirs = host->scores[at], ours = device->scores[at];
    float lse = host->lse[at / (size_t)host->samples];
    int same = device->tokens[at] == host->tokens[at];
    int good = exact ? same && near(ours, theirs, 0, 0)
                     : near(ours, theirs, largest_of_1(ours, theirs), 1e-3f);
    draws_compared++;
    near_ties += !same && good;
    if (!CHECK(good, "%s: draw %zu: token %d score %a on the GPU, %d and %a on the CPU", what, at,
               (int)device->tokens[at], (double)ours, (int)host->tokens[at], (double)theirs))
        return 0;
    if (!(parts & OUTCOME_MASS) || !same)
        return 1;
    float scale = fmaxf(largest_of_1(lse, host->logprobs[at]), fabsf(theirs));
    return CHECK(near(device->logprobs[at], host->logprobs[at], scale, exact ? 0x1p-22f : 1e-3f),
                 "%s: draw %zu: log-probability %a on the GPU, %a on the CPU", what, at,
                 (double)device->logprobs[at], (double)host->logprobs[at]);
}

int compare(const outcome *host, const outcome *device, outcome_parts parts, int exact,
            const char *what)
{
    size_t rows = (size_t)host->batch, draws = rows * (size_t)host->samples;
    for (size_t b = 0; b < rows; b++) {
        if (!CHECK(host->status[b] == device->status[b],
                   "%s: row %zu: status %d on the GPU, %d on the CPU", what, b,
                   (int)device->status[b], (int)host->status[b]))
            return 0;
        if (parts & OUTCOME_MASS &&
            !CHECK(near(device->lse[b], host->lse[b], largest_of_1(host->lse[b], 1),
                        exact ? 0x1p-22f : 1e-3f),
                   "%s: row %zu: lse %a on the GPU, %a on the CPU", what, b, (double)device->lse[b],
                   (double)host->lse[b]))
            return 0;
    }
    for (size_t at = 0; at < draws; at++)
        if (!compare_draw(host, device, parts, exact, at, what))
            return 0;
    return 1;
}

/* Whether two log-normalisers or log-probabilities each have an error below 2^-20 of the row's
 * scale plus half an ulp. */
static int same_but_for_rounding(float x, float y, float scale)
{
    return near(x, y, largest_of_1(x, scale), 0x1p-19f + 0x1p-23f);
}

int compare_ahead(const outcome *wanted, const outcome *found, const char *what)
{
    if (!CHECK(outcome_same(wanted, 0, found, OUTCOME_TOKENS | OUTCOME_SCORES, what),
               "noise ahead"))
        return 0;
    for (int64_t at = 0; at < wanted->batch * wanted->samples; at++) {
        float lse = wanted->lse[at / wanted->samples];
        if (!CHECK(same_but_for_rounding(lse, found->lse[at / wanted->samples], 1) &&
                       same_but_for_rounding(wanted->logprobs[at], found->logprobs[at], lse),
                   "%s: draw %d: lse %a log-probability %a by noise ahead, else %a %a", what,
                   (int)at, (double)found->lse[at / wanted->samples], (double)found->logprobs[at],
                   (double)lse, (double)wanted->logprobs[at]))
            return 0;
    }
    return 1;
}

/* ---------------------------------------------------------------------------------- checks ---- */

void check_problem(const problem *host, const char *what)
{
    problem *device = gpu_problem(host);
    outcome *theirs = outcome_make(host->plan.batch, host->plan.samples);
    outcome *ours = outcome_make(host->plan.batch, host->plan.samples);
    int exact = is_exact(&host->plan);
    CHECK(draw(cpu, &host->head, &host->sampling, theirs) == GUMBEL_OK, "%s", what);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_TOKENS | OUTCOME_SCORES, ours);
    compare(theirs, ours, OUTCOME_TOKENS | OUTCOME_SCORES, exact, what);
    outcome_poison(ours);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_ALL, ours);
    compare(theirs, ours, OUTCOME_ALL, exact, what);
    outcome_free(theirs);
    outcome_free(ours);
    gpu_problem_free(device);
}

void check_plan(const problem_plan *plan)
{
    problem *host = problem_make(plan);
    check_problem(host, problem_describe(&host->plan));
    problem_free(host);
}

/* Shards of `cut` tokens, their summaries merged and finished on the host. */
static void draw_in_shards(const problem *device, int64_t cut, outcome *joined)
{
    const problem_plan *plan = &device->plan;
    int64_t count = plan->batch * plan->samples;
    gumbel_summary *merged = make_zeroed((size_t)count, sizeof *merged);
    gumbel_error error;
    gumbel_summary_clear(merged, count);
    for (int64_t at = 0; at < plan->vocab; at += cut) {
        int64_t rows = plan->vocab - at < cut ? plan->vocab - at : cut;
        gumbel_head shard = problem_shard(&device->head, at, rows);
        gumbel_summary *part = gpu_summarise(&shard, NULL, &device->sampling);
        if (gumbel_merge(NULL, NULL, merged, part, count, NULL) != GUMBEL_OK)
            die("gumbel_merge");
        free(part);
    }
    outcome_poison(joined);
    CHECK(gumbel_finish(NULL, NULL, merged, 1, plan->batch, plan->samples, &joined->output,
                        &error) == GUMBEL_OK,
          "finish");
    free(merged);
}

void check_shards(const problem_plan *plan, const int64_t *cuts, int64_t border)
{
    problem *host = problem_make(plan), *device = gpu_problem(host);
    outcome *whole = outcome_make(plan->batch, plan->samples);
    outcome *joined = outcome_make(plan->batch, plan->samples);
    gpu_draw(&device->head, NULL, &device->sampling, OUTCOME_ALL, whole);
    for (; *cuts; cuts++) {
        draw_in_shards(device, *cuts, joined);
        compare(whole, joined, OUTCOME_TOKENS | OUTCOME_SCORES, 1, "shards");
        compare(whole, joined, OUTCOME_ALL, *cuts % border == 0, "shards");
    }
    outcome_free(whole);
    outcome_free(joined);
    gpu_problem_free(device);
    problem_free(host);
}

void check_invariance(const problem_plan *plan, outcome_parts parts)
{
    static const int64_t sizes[] = {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 130, 257};
    problem *host = problem_make(plan), *device = gpu_problem(host);
    outcome *whole = outcome_make(plan->batch, 1);
    uint64_t state = plan->seed;
    gpu_draw(&device->head, NULL, &device->sampling, parts, whole);
    for (int i = 0; i < 39; i++) {
        int64_t count = sizes[i % 13];
        if (count > plan->batch)
            continue;
        int64_t first = random_below(&state, (uint32_t)(plan->batch - count + 1));
        outcome *some = outcome_make(count, 1);
        gumbel_head head;
        gumbel_sampling sampling;
        char what[64];
        problem_rows(device, first, count, &head, &sampling);
        gpu_draw(&head, NULL, &sampling, parts, some);
        snprintf(what, sizeof what, "rows %d + %d", (int)first, (int)count);
        CHECK(outcome_same(whole, first, some, parts, what), "%s", what);
        outcome_free(some);
    }
    outcome_free(whole);
    gpu_problem_free(device);
    problem_free(host);
}
