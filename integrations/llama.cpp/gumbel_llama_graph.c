/* SPDX-License-Identifier: Apache-2.0
 *
 * The draw inside the graph that llama_decode() computes, on ggml's threads.
 *
 * While llama.cpp builds the graph, it passes a sampler a view of one row of the logits:
 *     VIEW <- PAD <- MUL_MAT 'result_output' (weight of the LM head, hidden states)
 * If the graph has exactly this shape, a fused draw reads weight and hidden state, and the product
 * is not computed. llama.cpp does not guarantee the shape. A batch of several outputs, which share
 * one product, is drawn from its logits, and any other graph from the view.
 *
 * The decision to skip the product is taken for each batch: before computing, llama.cpp calls only
 * the samplers of the batch's sequences. If it calls this sampler, the one row belongs to it and
 * nothing else reads the logits. A graph that is computed for another sequence keeps its product.
 */
#include "gumbel_llama_state.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <string.h>

/* ------------------------------------------------------------------------------ threads ---- */

#define TICKET(number, tasks, next)                                                                \
    ((uint64_t)(number) << 32 | (uint64_t)(tasks) << 16 | (uint64_t)(next))

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Run one task, if there is an unclaimed one. */
static bool run_task(struct gumbel_llama_job *job)
{
    uint64_t ticket = atomic_load_explicit(&job->ticket, memory_order_acquire);
    const int32_t tasks = (int32_t)(ticket >> 16 & 0xffff), next = (int32_t)(ticket & 0xffff);

    if (next >= tasks || !atomic_compare_exchange_strong(&job->ticket, &ticket, ticket + 1))
        return false;
    /* The job does not change while a claimed task runs. */
    job->task(job->argument, next);
    atomic_fetch_add_explicit(&job->done, 1, memory_order_release);
    return true;
}

/* A gumbel_parallel_for. The caller runs all unclaimed tasks, so it never waits for a thread that
 * has not claimed one. */
static void run_job(void *context, int32_t count, gumbel_task task, void *argument)
{
    struct gumbel_llama_job *job = context;
    const uint64_t number = (atomic_load(&job->ticket) >> 32) + 1;

    job->task = task;
    job->argument = argument;
    atomic_store(&job->done, 0);
    atomic_store_explicit(&job->ticket, TICKET(number, count, 0), memory_order_release);
    while (run_task(job))
        continue;
    while (atomic_load_explicit(&job->done, memory_order_acquire) < count)
        pause_cpu(); /* the remaining tasks are running on threads of the graph */
}

/* A device that splits calls over ggml's threads. On failure reports the error and returns NULL. */
static gumbel_device *graph_device(struct gumbel_llama_state *state, int32_t threads)
{
    const gumbel_device_options options = {.struct_size = sizeof options,
                                           .threads = threads,
                                           .parallel_for = threads > 1 ? run_job : NULL,
                                           .parallel_context = threads > 1 ? &state->job : NULL};
    gumbel_error error = {"", ""};

    if (state->graph_device && state->graph_threads == threads)
        return state->graph_device;
    gumbel_close(state->graph_device);
    state->graph_threads = threads;
    if (gumbel_open(&options, &state->graph_device, &error) != GUMBEL_OK) {
        gumbel_llama_fail(state, error.field, error.message);
        state->graph_device = NULL;
    }
    return state->graph_device;
}

/* ------------------------------------------------------------------------------ the draw ---- */

static gumbel_dtype convert_dtype(enum ggml_type type)
{
    return type == GGML_TYPE_F32   ? GUMBEL_FLOAT32
           : type == GGML_TYPE_F16 ? GUMBEL_FLOAT16
                                   : GUMBEL_BFLOAT16;
}

static gumbel_tensor convert_tensor(const struct ggml_tensor *t)
{
    return (gumbel_tensor){.data = t->data,
                           .dtype = convert_dtype(t->type),
                           .rows = t->ne[1],
                           .cols = t->ne[0],
                           .stride = (int64_t)(t->nb[1] / ggml_type_size(t->type))};
}

/* Draws from the weight and the hidden state, which are the sources of `dst`. */
static llama_token draw_fused(struct gumbel_llama_state *state, gumbel_device *device,
                              const struct ggml_tensor *dst)
{
    const gumbel_head head = {.struct_size = sizeof head,
                              .hidden = convert_tensor(dst->src[1]),
                              .weight = convert_tensor(dst->src[0])};
    state->report.fused++;
    return gumbel_llama_draw(state, device, &head, NULL);
}

/* Draws from the logits, the first source of `dst`. A second source has the ids of candidates. */
static llama_token draw_from_logits(struct gumbel_llama_state *state, gumbel_device *device,
                                    const struct ggml_tensor *dst)
{
    const struct ggml_tensor *logits = dst->src[0], *ids = dst->src[1];
    const float *row = logits->data;
    const int64_t count = ggml_nelements(logits); /* a row; after other samplers, a column */

    state->report.in_graph++;
    if (ids) {
        if (ids->type != GGML_TYPE_I32 || ggml_nelements(ids) != count)
            return gumbel_llama_fail(state, "candidates", "their type in the graph is not int32");
        if (!gumbel_llama_scatter(state, ids->data, row, sizeof *row, (size_t)count))
            return -1;
        row = state->row;
    } else if (count != state->n_vocab) {
        return gumbel_llama_fail(state, "n_vocab", "the graph has another number of logits");
    }
    const gumbel_logits from = gumbel_llama_logits(state, row, 1);
    return gumbel_llama_draw(state, device, NULL, &from);
}

/* The body of the custom operation: thread 0 draws, other threads run tasks of its call. */
static void run_draw(struct gumbel_llama_state *state, struct ggml_tensor *dst, int ith, int nth,
                     bool fused)
{
    if (ith > 0) {
        while (atomic_load_explicit(&state->job.closed, memory_order_acquire) == 0)
            if (!run_task(&state->job))
                pause_cpu();
        return;
    }
    llama_token token = -1;
    gumbel_device *device = graph_device(state, nth);
    if (device)
        token = fused ? draw_fused(state, device, dst) : draw_from_logits(state, device, dst);
    if (token < 0) {
        state->report.failed++;
        token = state->params.failed_token;
    }
    *(int32_t *)dst->data = token;
    atomic_store_explicit(&state->job.closed, 1, memory_order_release);
}

static void run_fused_draw(struct ggml_tensor *dst, int ith, int nth, void *state)
{
    run_draw(state, dst, ith, nth, true);
}

static void run_logits_draw(struct ggml_tensor *dst, int ith, int nth, void *state)
{
    run_draw(state, dst, ith, nth, false);
}

/* ------------------------------------------------------------------------- the graph ---- */

static bool is_matrix(const struct ggml_tensor *t, int64_t cols, int64_t rows)
{
    return t->ne[0] == cols && t->ne[1] == rows && t->ne[2] == 1 && t->ne[3] == 1;
}

/* Whether the library can read the weight in place: plain numbers, whole rows, host memory. */
static bool is_plain_weight(const struct ggml_tensor *t)
{
    return (t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16) &&
           t->nb[0] == ggml_type_size(t->type) && t->nb[1] % t->nb[0] == 0 &&
           t->nb[1] >= t->nb[0] * (size_t)t->ne[0] && t->buffer &&
           ggml_backend_buffer_is_host(t->buffer);
}

/* The logits of all outputs before llama.cpp's padding, of which data->logits is row *row; NULL if
 * data->logits is something else, as after another sampler. */
static struct ggml_tensor *find_unpadded_logits(const struct gumbel_llama_state *state,
                                                const struct llama_sampler_data *data, int64_t *row)
{
    const struct ggml_tensor *view = data->logits, *pad = view->view_src;
    if (data->candidates || view->op != GGML_OP_VIEW || !pad || pad->op != GGML_OP_PAD)
        return NULL;
    struct ggml_tensor *logits = pad->src[0];
    if (!logits || logits->type != GGML_TYPE_F32 || !ggml_is_contiguous(logits) ||
        !is_matrix(logits, state->n_vocab, logits->ne[1]) ||
        !is_matrix(pad, state->n_vocab, logits->ne[1] + 1) || pad->op_params[0] != 0 ||
        pad->op_params[2] != 0 || view->view_offs % logits->nb[1] != 0)
        return NULL;
    *row = (int64_t)(view->view_offs / logits->nb[1]);
    return *row < logits->ne[1] ? logits : NULL;
}

/* Whether `logits` is the plain product of the LM head with one output. */
static bool is_product(const struct gumbel_llama_state *state, const struct ggml_tensor *logits)
{
    const struct ggml_tensor *weight = logits->src[0], *hidden = logits->src[1];
    return logits->op == GGML_OP_MUL_MAT && strcmp(logits->name, "result_output") == 0 &&
           logits->ne[1] == 1 && weight && hidden && is_plain_weight(weight) &&
           is_matrix(weight, hidden->ne[0], state->n_vocab) && hidden->type == GGML_TYPE_F32 &&
           hidden->nb[0] == sizeof(float) && is_matrix(hidden, weight->ne[0], 1);
}

bool gumbel_llama_backend_init(struct llama_sampler *sampler, ggml_backend_buffer_type_t type,
                               uint32_t outputs)
{
    ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    (void)sampler;
    /* With several outputs of a sequence the sampler could not determine their order; and ggml runs
     * custom operations only on a CPU. */
    return outputs <= 1 &&
           (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU);
}

void gumbel_llama_backend_reset(struct llama_sampler *sampler)
{
    struct gumbel_llama_state *state = sampler->ctx;
    state->product = NULL;
}

void gumbel_llama_backend_apply(struct llama_sampler *sampler, struct ggml_context *context,
                                struct ggml_cgraph *graph, struct llama_sampler_data *data)
{
    struct gumbel_llama_state *state = sampler->ctx;
    struct ggml_tensor *arguments[2] = {data->logits, data->candidates};
    int64_t row = 0;
    struct ggml_tensor *logits = find_unpadded_logits(state, data, &row);
    (void)graph;

    state->product = logits && state->params.fused && is_product(state, logits) ? logits : NULL;
    if (state->product) {
        arguments[0] = logits->src[0];
        arguments[1] = logits->src[1];
    } else if (logits) {
        /* Reading before the padding spares computing it, which takes longer than a draw. */
        arguments[0] = ggml_view_1d(context, logits, logits->ne[0], (size_t)row * logits->nb[1]);
    } else {
        if (arguments[0]->type != GGML_TYPE_F32)
            arguments[0] = ggml_cast(context, arguments[0], GGML_TYPE_F32);
        for (int i = 0; i < 2; i++)
            if (arguments[i] && !ggml_is_contiguous(arguments[i]))
                arguments[i] = ggml_cont(context, arguments[i]);
    }
    data->sampled =
        ggml_custom_4d(context, GGML_TYPE_I32, 1, 1, 1, 1, arguments, arguments[1] ? 2 : 1,
                       state->product ? run_fused_draw : run_logits_draw, GGML_N_TASKS_MAX, state);
    data->logits = data->probs = data->candidates = NULL;
}

void gumbel_llama_backend_set_input(struct llama_sampler *sampler)
{
    struct gumbel_llama_state *state = sampler->ctx;
    atomic_store(&state->job.closed, 0);
    if (state->product)
        state->product->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
}
