/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_requests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- copies ---- */

/* A row parameter of `width` elements of `size` bytes. */
static void *copy_rows(gpu_request *generated, const void *from, int64_t stride, int64_t width,
                       size_t size)
{
    const gumbel_slots *slots = &generated->req.sampling.slots;
    int64_t rows = slots->of_row ? slots->count : generated->req.plan.batch;
    int64_t step = stride == GUMBEL_SAME ? 0 : stride ? stride : width;
    return gpu_copies_add(&generated->copies, from, (size_t)((rows - 1) * step + width) * size);
}

#define COPY_ROWS(rows)                                                                            \
    (rows).data = copy_rows(generated, (rows).data, (rows).stride, 1, sizeof *(rows).data)

static gumbel_tensor copy_tensor(gpu_request *generated, gumbel_tensor t)
{
    int64_t stride = t.stride ? t.stride : t.cols;
    t.data =
        gpu_copies_add(&generated->copies, t.data, (size_t)(t.rows * stride) * dtype_size(t.dtype));
    return t;
}

static void copy_transforms(gpu_request *generated)
{
    gumbel_transforms *t = &generated->req.transforms;
    gumbel_history *h = &generated->req.history;
    const request_plan *plan = &generated->req.plan;
    const gumbel_slots *slots = &generated->req.sampling.slots;
    size_t rows = (size_t)(slots->of_row ? slots->count : plan->batch);
    t->mask.data = copy_rows(generated, t->mask.data, t->mask.stride,
                             (plan->first_token + plan->vocab + 31) / 32, sizeof *t->mask.data);
    gpu_copies_add_all_lists(&generated->copies, t, (size_t)generated->req.plan.batch);
    COPY_ROWS(t->repetition);
    COPY_ROWS(t->frequency);
    COPY_ROWS(t->presence);
    if (t->history) {
        size_t tokens = (size_t)h->vocab_size, bits = rows * ((tokens + 31) / 32);
        h->prompt = gpu_copies_add(&generated->copies, h->prompt, bits * sizeof *h->prompt);
        h->output = gpu_copies_add(&generated->copies, h->output, bits * sizeof *h->output);
        h->counts = gpu_copies_add(&generated->copies, h->counts,
                                   rows * tokens * (h->count_bits == 32 ? 4 : 2));
        t->history = h;
    }
    generated->req.sampling.transforms = t;
}

/* The rules stay in host memory. */
static void copy_programs(gpu_request *generated)
{
    gumbel_programs *q = &generated->programs;
    *q = *generated->req.truncation.programs;
    COPY_ROWS(q->program);
    COPY_ROWS(q->min_keep);
    COPY_ROWS(q->temperature_range);
    COPY_ROWS(q->temperature_exponent);
    COPY_ROWS(q->typical_p);
    COPY_ROWS(q->top_n_sigma);
    COPY_ROWS(q->epsilon);
    COPY_ROWS(q->eta);
    COPY_ROWS(q->top_a);
    COPY_ROWS(q->surprise);
    COPY_ROWS(q->xtc_probability);
    COPY_ROWS(q->xtc_threshold);
    COPY_ROWS(q->smoothing_factor);
    COPY_ROWS(q->smoothing_curve);
    COPY_ROWS(q->adaptive_target);
    gpu_copies_add_lists(&generated->copies, &q->xtc_keep, (size_t)generated->req.plan.batch);
    generated->req.truncation.programs = q;
}

gpu_request *gpu_request_make(const request *host)
{
    gpu_request *generated = make_zeroed(1, sizeof *generated);
    request *r = &generated->req;
    gumbel_sampling *s = &r->sampling;
    gumbel_truncation *t = &r->truncation;
    *r = *host;
    r->logits.logits = copy_tensor(generated, r->logits.logits);
    if (r->plan.hidden_size > 0) {
        r->head.hidden = copy_tensor(generated, r->head.hidden);
        r->head.weight = copy_tensor(generated, r->head.weight);
        r->head.bias = copy_tensor(generated, r->head.bias);
    }
    COPY_ROWS(s->temperature);
    COPY_ROWS(s->seed);
    COPY_ROWS(s->position);
    COPY_ROWS(s->first_sample);
    s->noise =
        gpu_copies_add(&generated->copies, s->noise,
                       (size_t)(r->plan.batch * r->plan.samples * r->plan.vocab) * sizeof(float));
    s->token_ids = gpu_copies_add(&generated->copies, s->token_ids,
                                  (size_t)r->plan.vocab * sizeof *s->token_ids);
    if (s->transforms)
        copy_transforms(generated);
    if (s->truncation) {
        COPY_ROWS(t->min_p);
        COPY_ROWS(t->top_k);
        COPY_ROWS(t->top_p);
        if (t->programs)
            copy_programs(generated);
        s->truncation = t;
    }
    s->given.data =
        gpu_copies_add(&generated->copies, s->given.data, /* contiguous */
                       (size_t)(r->plan.batch * r->plan.samples) * sizeof *s->given.data);
    s->live_rows = gpu_copies_add(&generated->copies, s->live_rows, sizeof *s->live_rows);
    s->slots.of_row = gpu_copies_add(&generated->copies, s->slots.of_row,
                                     (size_t)r->plan.batch * sizeof *s->slots.of_row);
    return generated;
}

void gpu_request_free(gpu_request *generated)
{
    gpu_copies_free(&generated->copies);
    free(generated);
}

/* --------------------------------------------------------------------------------- outputs ---- */

/* One output: its address in an outcome and on the GPU, and its number of 4-byte elements. */
typedef struct place {
    void *host, *device;
    size_t count;
} place;

enum { PLACES = 12 };

static void list_places(const outcome *o, const gumbel_output *d, place places[PLACES])
{
    size_t rows = (size_t)o->batch, draws = rows * (size_t)o->samples;
    size_t listed = rows * (size_t)o->output.num_top;
    size_t kept = rows * (size_t)o->output.kept_capacity;
    const gumbel_output *h = &o->output;
    place all[PLACES] = {{h->tokens, d->tokens, draws},
                         {h->logprobs, d->logprobs, draws},
                         {h->scores, d->scores, draws},
                         {h->lse, d->lse, rows},
                         {h->status, d->status, rows},
                         {h->ranks, d->ranks, draws},
                         {h->kept, d->kept, rows},
                         {h->top_ids, d->top_ids, listed},
                         {h->top_logprobs, d->top_logprobs, listed},
                         {h->kept_ids, d->kept_ids, kept},
                         {h->kept_logprobs, d->kept_logprobs, kept},
                         {h->entropy, d->entropy, rows}};
    memcpy(places, all, sizeof all);
}

gumbel_output gpu_output_make(const outcome *like)
{
    gumbel_output out = like->output;
    place places[PLACES];
    list_places(like, &out, places);
    for (int i = 0; i < PLACES; i++)
        places[i].device = places[i].host ? gpu_make(places[i].count * 4) : NULL;
    out.tokens = places[0].device;
    out.logprobs = places[1].device;
    out.scores = places[2].device;
    out.lse = places[3].device;
    out.status = places[4].device;
    out.ranks = places[5].device;
    out.kept = places[6].device;
    out.top_ids = places[7].device;
    out.top_logprobs = places[8].device;
    out.kept_ids = places[9].device;
    out.kept_logprobs = places[10].device;
    out.entropy = places[11].device;
    return out;
}

void gpu_output_fetch(const gumbel_output *out, outcome *into)
{
    place places[PLACES];
    list_places(into, out, places);
    for (int i = 0; i < PLACES; i++)
        if (places[i].host)
            gpu_fetch(places[i].host, places[i].device, places[i].count * 4);
}

void gpu_output_free(const gumbel_output *out)
{
    void *all[] = {out->tokens,       out->logprobs, out->scores,        out->lse,
                   out->status,       out->ranks,    out->kept,          out->top_ids,
                   out->top_logprobs, out->kept_ids, out->kept_logprobs, out->entropy};
    for (int i = 0; i < PLACES; i++)
        gpu_free(all[i]);
}

/* ----------------------------------------------------------------------------------- calls ---- */

static void *make_room(const gpu_request *generated, int fused, const gumbel_output *out,
                       size_t *bytes)
{
    const request *r = &generated->req;
    gumbel_error error = {"", ""};
    if (gumbel_workspace_size(gpu, fused ? &r->head : NULL, fused ? NULL : &r->logits, &r->sampling,
                              out, bytes, &error) != GUMBEL_OK)
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    return gpu_hostile(*bytes);
}

static void queue_draw(const gpu_request *generated, CUstream stream, int fused,
                       const gumbel_output *out, void *workspace, size_t bytes)
{
    const request *r = &generated->req;
    gumbel_error error = {"", ""};
    gumbel_status status =
        fused ? gumbel_sample(gpu, stream, &r->head, &r->sampling, out, workspace, bytes, &error)
              : gumbel_sample_logits(gpu, stream, &r->logits, &r->sampling, out, workspace, bytes,
                                     &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

gpu_replay gpu_request_capture(gpu_request *generated, int fused, const outcome *like)
{
    gpu_replay captured = {.out = gpu_output_make(like)};
    size_t bytes;
    captured.workspace = make_room(generated, fused, &captured.out, &bytes);
    captured.graph = gpu_graph_begin();
    queue_draw(generated, captured.graph.stream, fused, &captured.out, captured.workspace, bytes);
    gpu_graph_end(&captured.graph);
    return captured;
}

void gpu_replay_draw(const gpu_replay *captured, outcome *into)
{
    gpu_graph_replay(&captured->graph);
    gpu_output_fetch(&captured->out, into);
}

void gpu_replay_free(const gpu_replay *captured)
{
    gpu_graph_free(&captured->graph);
    gpu_output_free(&captured->out);
    gpu_free(captured->workspace);
}

void gpu_request_draw(const gpu_request *generated, int fused, outcome *into)
{
    gumbel_output out = gpu_output_make(into);
    size_t bytes;
    void *workspace = make_room(generated, fused, &out, &bytes);
    queue_draw(generated, NULL, fused, &out, workspace, bytes);
    GPU(cuCtxSynchronize);
    gpu_output_fetch(&out, into);
    gpu_output_free(&out);
    gpu_free(workspace);
}

void gpu_request_draw_by(const gpu_request *generated, const char *rungs, outcome *into)
{
    const gumbel_device_options options = {
        .struct_size = sizeof options, .device = "cuda:0", .rungs = rungs};
    gumbel_device *const usual = gpu;
    gumbel_error error = {"", ""};
    if (gumbel_open(&options, &gpu, &error) != GUMBEL_OK)
        die("gumbel_open: %s: %s", error.field, error.message);
    gpu_request_draw(generated, 1, into);
    gumbel_close(gpu);
    gpu = usual;
}

int gpu_request_uses(const gpu_request *generated, const outcome *like, const char *rung)
{
    const request *r = &generated->req;
    char text[4096];
    gumbel_error error = {"", ""};
    if (gumbel_explain(gpu, &r->head, NULL, &r->sampling, &like->output, text, sizeof text,
                       &error) != GUMBEL_OK)
        die("gumbel_explain: %s: %s", error.field, error.message);
    return strstr(text, rung) != NULL;
}

void gpu_request_process(const gpu_request *generated, float *processed)
{
    const request *r = &generated->req;
    gumbel_error error = {"", ""};
    size_t bytes, size = (size_t)(r->plan.batch * r->plan.vocab) * sizeof *processed;
    void *workspace = make_room(generated, 0, NULL, &bytes);
    float *on_gpu = gpu_make(size);
    if (gumbel_process_logits(gpu, NULL, &r->logits, &r->sampling, on_gpu, 0, workspace, bytes,
                              &error) != GUMBEL_OK)
        die("gumbel_process_logits: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(processed, on_gpu, size);
    gpu_free(on_gpu);
    gpu_free(workspace);
}

void gpu_request_process_in_place(const gpu_request *generated, void *rows)
{
    const request *r = &generated->req;
    const gumbel_tensor *t = &r->logits.logits;
    gumbel_error error = {"", ""};
    size_t bytes;
    void *workspace = make_room(generated, 0, NULL, &bytes), *both = (void *)(uintptr_t)t->data;
    if (gumbel_process_logits_into(gpu, NULL, &r->logits, &r->sampling, both, t->dtype, t->stride,
                                   workspace, bytes, &error) != GUMBEL_OK)
        die("gumbel_process_logits_into: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(rows, both, tensor_bytes(t));
    gpu_free(workspace);
}

/* ------------------------------------------------------------------------------ comparison ---- */

static int same_ints(const int32_t *host, const int32_t *device, size_t count, const char *name,
                     const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (!CHECK(host[i] == device[i], "%s: %s[%zu] is %d on the GPU, %d on the CPU", what, name,
                   i, (int)device[i], (int)host[i]))
            return 0;
    return 1;
}

/* Within 2 ulps of `scale` (of each row, if given) or of the value itself. */
static int near_floats(const float *host, const float *device, size_t count, const float *scales,
                       size_t each, float bound, const char *name, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        float scale = fmaxf(1, fmaxf(fabsf(host[i]), scales ? fabsf(scales[i / each]) : 0));
        int good = (isnan(host[i]) && isnan(device[i])) || host[i] == device[i] ||
                   fabsf(host[i] - device[i]) <= bound * scale;
        if (!CHECK(good, "%s: %s[%zu] is %a on the GPU, %a on the CPU", what, name, i,
                   (double)device[i], (double)host[i]))
            return 0;
    }
    return 1;
}

int compare_request(const outcome *host, const outcome *device, const char *what)
{
    size_t rows = (size_t)host->batch, samples = (size_t)host->samples, draws = rows * samples;
    size_t top = (size_t)host->output.num_top, places = (size_t)host->output.kept_capacity;
    const float two_ulps = 0x1p-22f;
    draws_compared += (int64_t)draws;
    return same_ints(host->status, device->status, rows, "status", what) &&
           same_ints(host->kept, device->kept, rows, "kept", what) &&
           same_ints(host->tokens, device->tokens, draws, "tokens", what) &&
           near_floats(host->scores, device->scores, draws, NULL, 1, 0, "scores", what) &&
           same_ints(host->ranks, device->ranks, draws, "ranks", what) &&
           same_ints(host->top_ids, device->top_ids, rows * top, "top_ids", what) &&
           near_floats(host->lse, device->lse, rows, NULL, 1, two_ulps, "lse", what) &&
           near_floats(host->logprobs, device->logprobs, draws, host->lse, samples, two_ulps,
                       "logprobs", what) &&
           near_floats(host->top_logprobs, device->top_logprobs, rows * top, host->lse, top,
                       two_ulps, "top_logprobs", what) &&
           same_ints(host->kept_ids, device->kept_ids, rows * places, "kept_ids", what) &&
           near_floats(host->kept_logprobs, device->kept_logprobs, rows * places, host->lse, places,
                       two_ulps, "kept_logprobs", what) &&
           near_floats(host->entropy, device->entropy, host->entropy ? rows : 0, NULL, 1, 0,
                       "entropy", what);
}

/* Processes the GPU's logits in place, and compares them with z, rounded to their dtype. */
static void compare_in_place(const request *req, const gpu_request *on_gpu, const float *z,
                             const char *what)
{
    const gumbel_tensor *t = &req->logits.logits;
    const int64_t stride = t->stride ? t->stride : t->cols;
    void *rows = make_zeroed(tensor_bytes(t), 1);
    gpu_request_process_in_place(on_gpu, rows);
    for (int64_t i = 0; i < t->rows * t->cols; i++) {
        float rounded;
        dtype_store(&rounded, t->dtype, 0, z[i]);
        float expected = dtype_load(&rounded, t->dtype, 0);
        float found = dtype_load(rows, t->dtype, i / t->cols * stride + i % t->cols);
        if (!CHECK(found == expected || (isnan(found) && isnan(expected)),
                   "%s: %s in place: element %d is %a on the GPU, not %a", what,
                   dtype_name(t->dtype), (int)i, (double)found, (double)expected))
            break;
    }
    free(rows);
}

static void compare_processed(const request *req, const gpu_request *on_gpu, const char *what)
{
    size_t count = (size_t)(req->plan.batch * req->plan.vocab);
    float *host = make_zeroed(count, sizeof *host), *device = make_zeroed(count, sizeof *device);
    CHECK(request_process(cpu, &req->logits, &req->sampling, host) == GUMBEL_OK, "%s", what);
    gpu_request_process(on_gpu, device);
    for (size_t i = 0; i < count; i++)
        if (!CHECK(host[i] == device[i] || (isnan(host[i]) && isnan(device[i])),
                   "%s: processed[%zu] is %a on the GPU, %a on the CPU", what, i, (double)device[i],
                   (double)host[i]))
            break;
    compare_in_place(req, on_gpu, host, what);
    free(host);
    free(device);
}

void compare_requests(request *req, int fused)
{
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    const char *what = request_describe(&req->plan);
    CHECK((fused ? request_draw_fused : request_draw)(cpu, req, host) == GUMBEL_OK, "%s", what);
    gpu_request_draw(on_gpu, fused, device);
    compare_request(host, device, what);
    if (!fused)
        compare_processed(req, on_gpu, what);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}
