/* SPDX-License-Identifier: Apache-2.0 */
#include "soak_call.h"

#include "soak_pool.h"
#include "token_tables.h"

#include <gumbel/screen.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ data ---- */

static gumbel_tensor take_tensor(pool_kind kind, gumbel_dtype dtype, int64_t rows, int64_t cols,
                                 int64_t gap, int ragged, uint64_t *random)
{
    size_t size = dtype_size(dtype), bytes = (size_t)(rows * (cols + gap)) * size;
    const void *data = pool_piece(kind, dtype, bytes, ragged ? size : 64, random);
    return tensor_of(data, dtype, rows, cols, gap ? cols + gap : 0);
}

size_t soak_tensor_bytes(const gumbel_tensor *t)
{
    return (size_t)(t->rows * (t->stride ? t->stride : t->cols)) * dtype_size(t->dtype);
}

/* Weights that give logits a standard deviation of about 1 to 10. */
static pool_kind weights_for(const soak_plan *plan)
{
    int64_t size = plan->req.hidden_size;
    if (plan->exact)
        return size <= 512 ? POOL_QUARTERS : POOL_SIXTEENTHS;
    return size <= 64 ? POOL_NORMAL : size <= 1024 ? POOL_NORMAL_4 : POOL_NORMAL_16;
}

static void take_head(const soak_plan *plan, gumbel_head *head, uint64_t *random)
{
    const request_plan *req = &plan->req;
    pool_kind of_bias = plan->bias == GUMBEL_FLOAT32 ? POOL_BIAS : POOL_QUARTERS;
    head->weight = take_tensor(weights_for(plan), plan->weight, req->vocab, req->hidden_size,
                               plan->gap, plan->ragged, random);
    head->hidden = take_tensor(plan->exact ? POOL_QUARTERS : POOL_NORMAL, plan->hidden, req->batch,
                               req->hidden_size, plan->hidden_gap, plan->ragged, random);
    if (plan->bias)
        head->bias = take_tensor(of_bias, plan->bias, 1, req->vocab, 0, plan->ragged, random);
}

static void take_logits(const soak_plan *plan, gumbel_tensor *logits, uint64_t *random)
{
    static const pool_kind kinds[] = {POOL_LOGITS, POOL_LOGITS,   POOL_LOGITS,
                                      POOL_NORMAL, POOL_QUARTERS, POOL_PEAKED};
    const request_plan *req = &plan->req;
    pool_kind kind = kinds[random_below(random, 6)];
    *logits = take_tensor(kind, req->dtype ? req->dtype : GUMBEL_FLOAT32, req->batch, req->vocab,
                          plan->gap, plan->ragged, random);
}

/* Copies the tensor's data, with NaN or +inf in some rows, and points the tensor to the copy;
 * returns the copy. */
static void *copy_with_faults(gumbel_tensor *t, uint64_t *random)
{
    size_t bytes = soak_tensor_bytes(t), size = dtype_size(t->dtype);
    int64_t stride = t->stride ? t->stride : t->cols;
    char *copied = gpu_make(bytes);
    GPU(cuMemcpyDtoDAsync, (CUdeviceptr)(uintptr_t)copied, (CUdeviceptr)(uintptr_t)t->data, bytes,
        NULL);
    GPU(cuStreamSynchronize, NULL);
    for (int i = 0; i < 3; i++) {
        uint32_t row = random_below(random, (uint32_t)t->rows);
        int64_t at = row * stride + random_below(random, (uint32_t)t->cols);
        float value = 0;
        if (random_below(random, 2))
            dtype_store_nan(&value, t->dtype, 0);
        else
            dtype_store_infinite(&value, t->dtype, 0, 1);
        gpu_put(copied + (size_t)at * size, &value, size);
    }
    t->data = copied;
    return copied;
}

/* Makes a screen of the head, and sets head->screen to it. */
static gumbel_screen make_screen(gumbel_head *head, int nibbles)
{
    const int32_t format = nibbles ? GUMBEL_SCREEN_NIBBLES : GUMBEL_SCREEN_BYTES;
    const gumbel_screen_options options = {.struct_size = sizeof options, .format = format};
    gumbel_screen screen = {NULL, 0, format};
    gumbel_error error = {"", ""};
    if (gumbel_screen_size(gpu, &head->weight, &screen.bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    screen.data = gpu_make(screen.bytes);
    if (gumbel_screen_prepare(gpu, NULL, &head->weight, &options, &screen, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    GPU(cuStreamSynchronize, NULL);
    head->screen = screen;
    return screen;
}

static void take_data(soak_call *call, uint64_t *random)
{
    const soak_plan *plan = &call->plan;
    request *r = &call->on_gpu->req;
    int fused = plan->req.hidden_size > 0;
    if (fused)
        take_head(plan, &r->head, random);
    else
        take_logits(plan, &r->logits.logits, random);
    if (plan->faulty)
        call->faulty = copy_with_faults(fused ? &r->head.hidden : &r->logits.logits, random);
    if (plan->screened)
        call->screen = make_screen(&r->head, plan->nibbles);
}

/* --------------------------------------------------------------------------------- outputs ---- */

static void place_arrays(soak_call *call)
{
    const request_plan *req = &call->plan.req;
    int outputs = call->plan.outputs;
    size_t rows = (size_t)req->batch, draws = rows * (size_t)req->samples;
    size_t listed = rows * (size_t)req->num_top, kept = rows * (size_t)req->kept_capacity;
    size_t requests = (size_t)soak_drafts_requests(&call->plan);
    size_t nodes = requests * (size_t)call->plan.nodes;
    const soak_place places[SOAK_PLACES] = {
        {"tokens", 0, draws, 0},
        {"scores", 0, outputs & SOAK_SCORES ? draws : 0, 1},
        {"status", 0, outputs & SOAK_STATUS ? rows : 0, 0},
        {"lse", 0, outputs & SOAK_MASS ? rows : 0, 1},
        {"logprobs", 0, outputs & SOAK_MASS ? draws : 0, 1},
        {"ranks", 0, outputs & SOAK_RANKS ? draws : 0, 0},
        {"kept", 0, outputs & SOAK_KEPT ? rows : 0, 0},
        {"top_ids", 0, listed, 0},
        {"top_logprobs", 0, listed, 1},
        {"top_logits", 0, outputs & SOAK_LOGITS ? listed : 0, 1},
        {"kept_ids", 0, kept, 0},
        {"kept_logprobs", 0, kept, 1},
        {"entropy", 0, req->entropy ? rows : 0, 1},
        {"emitted tokens", 0, nodes, 0},
        {"emitted", 0, requests, 0},
        {"accepted", 0, requests, 0},
        {"path", 0, nodes, 0},
        {"last row", 0, requests, 0},
        {"finished", 0, requests, 0},
        {"status of requests", 0, requests, 0},
        {"emitted logprobs", 0, outputs & SOAK_MASS ? nodes : 0, 1},
        {"emitted scores", 0, outputs & SOAK_SCORES ? nodes : 0, 1},
    };
    memcpy(call->places, places, sizeof places);
    for (int i = 0; i < SOAK_PLACES; i++) {
        call->places[i].at = call->words;
        call->words += call->places[i].count;
    }
}

void *soak_place_of(const soak_call *call, int slot, int i)
{
    const soak_place *place = &call->places[i];
    return place->count ? call->outputs + (size_t)slot * call->words + place->at : NULL;
}

static gumbel_output output_at(const soak_call *call, int slot)
{
    return (gumbel_output){.struct_size = sizeof(gumbel_output),
                           .tokens = soak_place_of(call, slot, 0),
                           .scores = soak_place_of(call, slot, 1),
                           .status = soak_place_of(call, slot, 2),
                           .lse = soak_place_of(call, slot, 3),
                           .logprobs = soak_place_of(call, slot, 4),
                           .ranks = soak_place_of(call, slot, 5),
                           .kept = soak_place_of(call, slot, 6),
                           .top_ids = soak_place_of(call, slot, 7),
                           .top_logprobs = soak_place_of(call, slot, 8),
                           .top_logits = soak_place_of(call, slot, 9),
                           .kept_ids = soak_place_of(call, slot, 10),
                           .kept_logprobs = soak_place_of(call, slot, 11),
                           .kept_capacity = call->plan.req.kept_capacity,
                           .num_top = call->plan.req.num_top,
                           .logprobs_of = call->plan.req.logprobs_of,
                           .entropy = soak_place_of(call, slot, 12)};
}

size_t soak_output_bytes(const soak_call *call) { return (size_t)call->slots * call->words * 4; }

size_t soak_ring_bytes(const soak_call *call)
{
    return (size_t)call->ring_length * call->places[0].count * 4;
}

/* ----------------------------------------------------------------------------------- steps ---- */

static void queue_noise(const soak_call *call, CUstream stream)
{
    const request *r = &call->on_gpu->req;
    gumbel_sampling sampling = r->sampling;
    sampling.noise = NULL;
    make_noise(gpu, stream, &sampling, r->plan.batch, r->plan.first_token, r->plan.vocab,
               call->noise, 0);
}

static void queue_draw(const soak_call *call, const gumbel_output *out, CUstream stream)
{
    const request *r = &call->on_gpu->req;
    gumbel_error error = {"", ""};
    gumbel_status status =
        r->plan.hidden_size > 0
            ? gumbel_sample(gpu, stream, &r->head, &r->sampling, out, call->workspace,
                            call->workspace_bytes, &error)
            : gumbel_sample_logits(gpu, stream, &r->logits, &r->sampling, out, call->workspace,
                                   call->workspace_bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
}

/* Queues the end of a step: tokens are counted, and positions advance. */
static void queue_end(const soak_call *call, const gumbel_output *out, CUstream stream)
{
    const request *r = &call->on_gpu->req;
    gumbel_error error = {"", ""};
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = r->plan.batch,
                        .num_samples = r->plan.samples,
                        .tokens = out->tokens,
                        .position = (uint64_t *)r->sampling.position.data,
                        .ring = (int32_t *)call->ring,
                        .ring_length = call->ring_length};
    if (call->plan.counts &&
        gumbel_history_update(gpu, stream, &r->history, r->plan.batch, NULL, out->tokens,
                              r->plan.samples, NULL, &error) != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
    if (call->plan.advances && gumbel_advance(gpu, stream, &step, &error) != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
}

static void queue_step(const soak_call *call, int slot, CUstream stream)
{
    gumbel_output out = output_at(call, slot);
    soak_rules_queue_lists(call, stream);
    if (call->noise)
        queue_noise(call, stream);
    if (call->plan.nodes) {
        soak_drafts_queue(call, slot, &out, stream);
        return;
    }
    queue_draw(call, &out, stream);
    soak_rules_queue_updates(call, &out, stream);
    queue_end(call, &out, stream);
}

void soak_call_queue(soak_call *call, int step)
{
    if (call->plan.in_graph)
        GPU(cuGraphLaunch, call->graph.replay, call->graph.stream);
    else
        queue_step(call, step, call->graph.stream);
}

void soak_call_queue_alone(soak_call *call, int step)
{
    if (call->workspace_bytes)
        gpu_poison(call->workspace, call->workspace_bytes);
    call->on_gpu->req.head.screen = (gumbel_screen){NULL, 0, 0};
    queue_step(call, call->plan.in_graph ? 0 : step, NULL);
    call->on_gpu->req.head.screen = call->screen;
}

void soak_call_reset(soak_call *call)
{
    const request *host = call->req, *r = &call->on_gpu->req;
    size_t rows = (size_t)host->plan.batch, tokens = (size_t)host->history.vocab_size;
    gpu_put((void *)r->sampling.position.data, host->sampling.position.data,
            rows * sizeof(uint64_t));
    if (call->plan.counts) {
        gpu_put(r->history.output, host->history.output,
                rows * ((tokens + 31) / 32) * sizeof(uint32_t));
        gpu_put(r->history.counts, host->history.counts, rows * tokens * sizeof(uint16_t));
    }
    soak_rules_reset(call);
    gpu_poison(call->outputs, soak_output_bytes(call));
    if (call->ring)
        gpu_poison(call->ring, soak_ring_bytes(call));
    if (call->workspace_bytes)
        gpu_poison(call->workspace, call->workspace_bytes);
}

/* ----------------------------------------------------------------------------------- calls ---- */

static void allocate_outputs(soak_call *call)
{
    request *r = &call->on_gpu->req;
    int fused = r->plan.hidden_size > 0;
    gumbel_error error = {"", ""};
    size_t draws = call->places[0].count;
    call->slots = call->plan.in_graph ? 1 : call->plan.steps;
    call->outputs = gpu_make(soak_output_bytes(call));
    call->wanted_outputs = make_zeroed(soak_output_bytes(call), 1);
    call->ring_length =
        call->plan.advances && !call->plan.nodes ? call->plan.steps + call->plan.steps % 3 : 0;
    if (call->ring_length > 0) {
        call->ring = gpu_make(soak_ring_bytes(call));
        call->wanted_ring = make_zeroed(soak_ring_bytes(call), 1);
    }
    if (call->plan.prepare_noise)
        call->noise = gpu_make(draws * (size_t)r->plan.vocab * sizeof(float));
    r->sampling.noise = call->noise;
    gumbel_output out = output_at(call, 0);
    if (call->plan.nodes)
        call->workspace_bytes = soak_drafts_workspace(call, &out);
    else if (gumbel_workspace_size(gpu, fused ? &r->head : NULL, fused ? NULL : &r->logits,
                                   &r->sampling, &out, &call->workspace_bytes, &error) != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
    call->workspace = gpu_make(call->workspace_bytes);
}

int soak_call_is_screened(const soak_call *call)
{
    const request *r = &call->on_gpu->req;
    const gumbel_output out = output_at(call, 0);
    char text[4096];
    gumbel_error error = {"", ""};
    if (call->screen.data && gumbel_explain(gpu, &r->head, NULL, &r->sampling, &out, text,
                                            sizeof text, &error) != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
    return call->screen.data && strstr(text, "draw: screen:") != NULL;
}

/* Leaves one word of 64 in the masks of a request, and sets a limit that rows may exceed. */
static void thin_masks(request *req, uint64_t random)
{
    const gumbel_row_i32 *mask = &req->transforms.mask;
    const int64_t words = (req->plan.first_token + req->plan.vocab + 31) / 32;
    const int64_t rows = mask->stride == GUMBEL_SAME ? 1 : req->plan.batch;
    const int64_t stride = mask->stride > 0 ? mask->stride : words;
    int32_t *data = (int32_t *)(uintptr_t)mask->data;
    for (int64_t i = 0; data && i < rows * words; i++)
        if (random_below(&random, 64) > 0)
            data[i / words * stride + i % words] = 0;
    if (data)
        req->transforms.max_allowed =
            1 + random_below(&random, (uint32_t)(req->plan.vocab / 2 / req->plan.batch + 1));
}

/* Gives ids to the rows of a request, which owns the table. */
static void add_table(request *req, uint64_t random)
{
    const int64_t vocab = req->plan.vocab;
    const size_t bytes = (size_t)vocab * sizeof(int32_t);
    int32_t *ids = table_make((table_kind)random_below(&random, TABLE_KINDS), vocab,
                              vocab + random_below(&random, 200000), &random);
    req->sampling.token_ids = memcpy(request_allocate(req, (size_t)vocab, sizeof *ids), ids, bytes);
    req->programs.xtc_keep = (gumbel_token_lists){0};
    free(ids);
}

soak_call *soak_call_make(const soak_plan *plan, uint64_t seed)
{
    soak_call *call = make_zeroed(1, sizeof *call);
    call->plan = *plan;
    soak_plan_describe(plan, call->text, sizeof call->text);
    call->req = request_make_rules(&plan->req);
    if (plan->few_allowed)
        thin_masks(call->req, seed);
    if (plan->has_table)
        add_table(call->req, seed);
    uint64_t *position = (uint64_t *)call->req->sampling.position.data;
    for (int64_t b = 0; b < plan->req.batch; b++)
        position[b] &= INT32_MAX; /* the ring's entries are then used in order */
    call->on_gpu = gpu_request_make(call->req);
    take_data(call, &seed);
    soak_rules_make(call);
    place_arrays(call);
    allocate_outputs(call);
    gumbel_output out = output_at(call, 0);
    if (plan->nodes)
        soak_drafts_make(call, &out, &seed);
    if (plan->in_graph) {
        call->graph = gpu_graph_begin();
        queue_step(call, 0, call->graph.stream);
        gpu_graph_end(&call->graph);
    } else {
        GPU(cuStreamCreate, &call->graph.stream, CU_STREAM_NON_BLOCKING);
    }
    return call;
}

void soak_call_free(soak_call *call)
{
    if (call->plan.in_graph)
        gpu_graph_free(&call->graph);
    else
        GPU(cuStreamDestroy, call->graph.stream);
    soak_drafts_free(call);
    soak_rules_free(call);
    gpu_free(call->workspace);
    gpu_free(call->noise);
    gpu_free(call->ring);
    gpu_free(call->outputs);
    gpu_free(call->faulty);
    gpu_free(call->screen.data);
    free(call->wanted_outputs);
    free(call->wanted_ring);
    gpu_request_free(call->on_gpu);
    request_free(call->req);
    free(call);
}
