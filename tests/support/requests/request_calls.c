/* SPDX-License-Identifier: Apache-2.0 */
#include "requests.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gumbel_dtype dtypes[3] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};

request_plan request_plan_at_random(int index, int fused)
{
    static const int64_t firsts[] = {0, 0, 0, 64, 37, 100003};
    static const float scales[] = {0, 0, 0, 0.5f, -2}, caps[] = {0, 0, 0, 0, 30, 5};
    static const int32_t tops[] = {0, 0, 1, 5, 20, 128};
    uint64_t state = 7000 + 2 * (uint64_t)index + (uint64_t)fused;
    request_plan plan = {.seed = random_bits(&state) >> 20};
    uint32_t longest = fused ? 200 : index % 8 == 7 ? 5000 : 300;
    plan.batch = 1 + random_below(&state, 12);
    plan.vocab = 1 + (index < 130 ? (int64_t)index : random_below(&state, longest));
    plan.hidden_size = fused ? 1 + random_below(&state, 40) : 0;
    plan.first_token = firsts[random_below(&state, 6)];
    if (random_below(&state, 3) == 0)
        plan.vocab_size = plan.first_token + 1 + random_below(&state, (uint32_t)plan.vocab);
    plan.samples = 1 + (int32_t)random_below(&state, 4);
    plan.num_top = tops[random_below(&state, 6)];
    plan.dtype = fused ? 0 : dtypes[random_below(&state, 3)];
    plan.scale = scales[random_below(&state, 5)];
    plan.soft_cap = caps[random_below(&state, 6)];
    plan.order = (gumbel_order)random_below(&state, REQUEST_ORDERS);
    plan.ties = (gumbel_ties)random_below(&state, 2);
    plan.logprobs_of = random_below(&state, 3) ? GUMBEL_PROCESSED : GUMBEL_RAW;
    plan.transforms = random_below(&state, 3) > 0;
    plan.truncation = random_below(&state, 6) > 0;
    plan.history = (int)random_below(&state, 2);
    plan.given_noise = random_below(&state, 4) == 0;
    return plan;
}

request_plan request_plan_on_shard(int first, int vocab, int end, uint64_t *random)
{
    enum { BLOCK = 64 };
    request_plan plan = {.batch = 1 + random_below(random, 3),
                         .hidden_size = random_below(random, 16) == 0 ? 5 : 0,
                         .vocab = vocab + BLOCK * random_below(random, 3),
                         .first_token = first + BLOCK * (1 + random_below(random, 2000)),
                         .samples = 1 + (int32_t)random_below(random, 2),
                         .num_top = REQUEST_SHARD_TOP,
                         .order = (gumbel_order)random_below(random, REQUEST_ORDERS),
                         .ties = (gumbel_ties)random_below(random, 2),
                         .logprobs_of = (gumbel_distribution)random_below(random, 2),
                         .transforms = random_below(random, 4) == 0,
                         .truncation = random_below(random, 4) > 0,
                         .given_noise = random_below(random, 8) == 0,
                         .seed = random_bits(random) >> 20};
    int64_t blocks = plan.first_token / BLOCK;
    uint32_t ends = random_below(random, 3);
    plan.vocab += plan.vocab == 0 ? BLOCK : 0;
    if (ends == 0) /* before the shard */
        plan.vocab_size = end + BLOCK * (blocks - (end > first));
    if (ends == 1) /* behind its first token */
        plan.vocab_size = end + BLOCK * (blocks + (end <= first) + random_below(random, 2));
    return plan;
}

const char *request_describe(const request_plan *plan)
{
    static const char *orders[] = {"chain",      "joint",         "before T",
                                   "min_p last", "min_p last, T", "joint, T"};
    static char text[320];
    snprintf(text, sizeof text,
             "B %" PRId64 " V %" PRId64 " D %" PRId64 " S %d n %d %s first %" PRId64
             " vocab %" PRId64 " scale %g cap %g %s ties %s of %s%s%s%s%s%s kind %d seed %" PRIu64,
             plan->batch, plan->vocab, plan->hidden_size, (int)plan->samples, (int)plan->num_top,
             dtype_name(plan->dtype ? plan->dtype : GUMBEL_FLOAT32), plan->first_token,
             plan->vocab_size, (double)plan->scale, (double)plan->soft_cap, orders[plan->order],
             plan->ties ? "exact" : "all", plan->logprobs_of ? "raw" : "processed",
             plan->transforms ? " transforms" : "", plan->truncation ? " truncation" : "",
             plan->single_rule  ? " single rules"
             : plan->programs   ? " programs"
             : plan->by_program ? " by program"
                                : "",
             plan->history ? " history" : "", plan->given_noise ? " noise" : "", plan->kind,
             plan->seed);
    return text;
}

const char *request_describe_row(const request *req, int64_t b)
{
    static char text[160];
    const gumbel_sampling *s = &req->sampling;
    const gumbel_truncation *t = &req->truncation;
    snprintf(text, sizeof text, "row %" PRId64 " (T %a min_p %a top_k %d top_p %a)", b,
             (double)row_f32(&s->temperature, s, b, 1), (double)row_f32(&t->min_p, s, b, 0),
             (int)row_i32(&t->top_k, s, b, 0), (double)row_f32(&t->top_p, s, b, 1));
    return text;
}

/* --------------------------------------------------------------------------------- views ---- */

static gumbel_tensor tensor_rows(gumbel_tensor t, int64_t first, int64_t count)
{
    int64_t stride = t.stride ? t.stride : t.cols;
    t.data = (const char *)t.data + (size_t)(first * stride) * dtype_size(t.dtype);
    t.rows = count;
    return t;
}

/* Row parameters of `width` elements from row `first` on; unchanged with slots. */
#define SKIP(rows, width)                                                                          \
    if ((rows).data && (rows).stride != GUMBEL_SAME && !s->slots.of_row)                           \
    (rows).data += first * ((rows).stride ? (rows).stride : (width))

static void transforms_from(const gumbel_sampling *s, gumbel_transforms *t, gumbel_history *h,
                            int64_t first, int64_t tokens)
{
    gumbel_token_lists *lists[] = {&t->allowed,       &t->banned,        &t->bias,
                                   &t->prompt_tokens, &t->output_tokens, &t->late_bias};
    for (int i = 0; i < 6; i++)
        if (lists[i]->offsets)
            lists[i]->offsets += first;
    SKIP(t->mask, (tokens + 31) / 32);
    SKIP(t->repetition, 1);
    SKIP(t->frequency, 1);
    SKIP(t->presence, 1);
    if (t->history && !s->slots.of_row) {
        int64_t words = (h->vocab_size + 31) / 32, size = h->count_bits == 32 ? 4 : 2;
        h->prompt += first * words;
        h->output += first * words;
        h->counts = (char *)h->counts + first * h->vocab_size * size;
        t->history = h;
    }
}

gumbel_tensor request_narrow_tensor(request *req, const gumbel_tensor *t, gumbel_dtype dtype)
{
    const int64_t from = t->stride ? t->stride : t->cols, to = (t->cols + 7) / 8 * 8;
    void *data = request_allocate(req, (size_t)(t->rows * to), dtype_size(dtype));
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t i = 0; i < t->cols; i++) {
            const float x = dtype_load(t->data, t->dtype, row * from + i);
            if (x != x)
                dtype_store_nan(data, dtype, row * to + i);
            else
                dtype_store(data, dtype, row * to + i, x);
        }
    return tensor_of(data, dtype, t->rows, t->cols, to);
}

void request_rows(const request *whole, int64_t first, int64_t count, request *part)
{
    gumbel_sampling *s = &part->sampling;
    gumbel_truncation *t = &part->truncation;
    *part = *whole;
    part->plan.batch = count;
    part->logits.logits = tensor_rows(whole->logits.logits, first, count);
    if (whole->product)
        part->head.hidden = tensor_rows(whole->head.hidden, first, count);
    SKIP(s->temperature, 1);
    SKIP(s->seed, 1);
    SKIP(s->position, 1);
    SKIP(s->first_sample, 1);
    SKIP(s->given, whole->plan.samples);
    if (s->noise)
        s->noise += first * whole->plan.samples * whole->plan.vocab;
    if (s->transforms) {
        transforms_from(s, &part->transforms, &part->history, first,
                        whole->plan.first_token + whole->plan.vocab);
        s->transforms = &part->transforms;
    }
    if (s->truncation) {
        SKIP(t->min_p, 1);
        SKIP(t->top_p, 1);
        SKIP(t->top_k, 1);
        if (t->programs) {
            part->programs = *t->programs;
            if (!s->slots.of_row)
                request_skip_programs(&part->programs, first);
            part->programs.xtc_keep.offsets += part->programs.xtc_keep.offsets ? first : 0;
            t->programs = &part->programs;
        }
        s->truncation = t;
    }
    if (s->slots.of_row)
        s->slots.of_row += first;
}

/* --------------------------------------------------------------------------------- calls ---- */

outcome *request_outcome(const request *req)
{
    outcome *generated = outcome_make(req->plan.batch, req->plan.samples);
    outcome_widen(generated, req->plan.num_top, req->plan.logprobs_of);
    if (req->plan.kept_capacity > 0)
        outcome_list_kept(generated, req->plan.kept_capacity);
    if (req->plan.entropy)
        outcome_add_entropy(generated);
    return generated;
}

gumbel_status request_draw(gumbel_device *device, const request *req, outcome *into)
{
    size_t bytes;
    void *workspace =
        call_workspace(device, NULL, &req->logits, &req->sampling, &into->output, &bytes);
    outcome_poison(into);
    gumbel_status status = gumbel_sample_logits(device, NULL, &req->logits, &req->sampling,
                                                &into->output, workspace, bytes, &into->error);
    free(workspace);
    return report_call("gumbel_sample_logits", status, &into->error);
}

gumbel_status request_draw_fused(gumbel_device *device, const request *req, outcome *into)
{
    size_t bytes;
    void *workspace =
        call_workspace(device, &req->head, NULL, &req->sampling, &into->output, &bytes);
    outcome_poison(into);
    gumbel_status status = gumbel_sample(device, NULL, &req->head, &req->sampling, &into->output,
                                         workspace, bytes, &into->error);
    free(workspace);
    return report_call("gumbel_sample", status, &into->error);
}

outcome *request_draw_rows(gumbel_device *device, const request *req, int wide)
{
    outcome *drawn = outcome_make(req->plan.batch, req->plan.samples);
    if (wide)
        outcome_widen(drawn, 0, req->plan.logprobs_of);
    drawn->output.logprobs_of = req->plan.logprobs_of;
    if (request_draw(device, req, drawn) != GUMBEL_OK)
        die("%s: no draw of rows", request_describe(&req->plan));
    return drawn;
}

int request_same_alone(gumbel_device *device, const request *req, const outcome *expected)
{
    int same = 1;
    for (int64_t b = 0; b < req->plan.batch && same; b++) {
        request row;
        request_rows(req, b, 1, &row);
        outcome *alone = request_outcome(&row);
        same = request_draw(device, &row, alone) == GUMBEL_OK &&
               outcome_same(expected, b, alone, OUTCOME_ALL, request_describe_row(req, b));
        outcome_free(alone);
    }
    return same;
}

gumbel_status request_process_into(gumbel_device *device, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, void *processed,
                                   gumbel_dtype dtype, int64_t stride)
{
    size_t bytes;
    gumbel_error error = {"", ""};
    void *workspace = call_workspace(device, NULL, logits, sampling, NULL, &bytes);
    gumbel_status status = gumbel_process_logits_into(device, NULL, logits, sampling, processed,
                                                      dtype, stride, workspace, bytes, &error);
    free(workspace);
    return report_call("gumbel_process_logits_into", status, &error);
}

gumbel_status request_process(gumbel_device *device, const gumbel_logits *logits,
                              const gumbel_sampling *sampling, float *processed)
{
    size_t bytes, size = (size_t)logits->logits.rows * (size_t)logits->logits.cols;
    gumbel_error error = {"", ""};
    void *workspace = call_workspace(device, NULL, logits, sampling, NULL, &bytes);
    memset(processed, 0xA7, size * sizeof *processed);
    gumbel_status status = gumbel_process_logits(device, NULL, logits, sampling, processed, 0,
                                                 workspace, bytes, &error);
    free(workspace);
    return report_call("gumbel_process_logits", status, &error);
}
