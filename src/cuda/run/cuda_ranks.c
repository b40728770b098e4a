/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks on GPUs draw by: exchanges with GPUs whose memory this one reaches, rows that the host
 * is asked for and laid side by side, first tokens listed and drawn from.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"
#include "cuda/step/ranks/top64_params.h"

_Static_assert(CUDA_TOP64 == GUMBEL_RANK_TOP, "peers.h says so");
_Static_assert(GUMBEL_PEERS_TOP64_ROWS <= CUDA_EXCHANGE_CTAS, "as many run at once");
_Static_assert(CUDA_EXCHANGE_ROWS_MAX == GUMBEL_PEERS_CHOSEN_ROWS, "peers.h says so");

/* CTAs of a multiprocessor that lay what an errand brings. */
#define LAY_CTAS 4

static cuda_exchange_params exchange_of(const gumbel_peers *peers)
{
    cuda_exchange_params p = {
        .rank = peers->rank,
        .ranks = peers->ranks,
        .room = (int64_t)peers->words,
        .report = peers->device_report,
        .timeout_ns = (uint64_t)peers->timeout_ms * 1000000,
    };
    for (int32_t r = 0; r < peers->ranks; r++)
        p.peer_buffers[r] = peers->buffers[r];
    return p;
}

/* Few CTAs, so that all of them run at once. */
static cuda_shape exchange_shape(int64_t ctas)
{
    return (cuda_shape){ctas < CUDA_EXCHANGE_CTAS ? ctas : CUDA_EXCHANGE_CTAS,
                        CUDA_EXCHANGE_THREADS, 0, 1};
}

static gumbel_status exchange(gumbel_device *device, void *stream, const gumbel_peers *peers,
                              const gumbel_finish_call *call, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_exchange_params p = exchange_of(peers);
    p.words = (const uint32_t *)call->summaries;
    p.draws = call->batch * call->num_samples;
    p.num_samples = call->num_samples;
    p.output = *call->output;
    GUMBEL_ASSERT(p.draws > 0 && p.draws * (int64_t)(sizeof(gumbel_summary) / 4) <= p.room);
    /* Warps of few draws are spread over many multiprocessors. */
    return cuda_launch_alone(&job, job.cuda->exchange_summaries, exchange_shape(p.draws), &p);
}

static gumbel_status exchange_rows(gumbel_device *device, void *stream, const gumbel_peers *peers,
                                   const gumbel_peer_rows *rows, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_exchange_params p = exchange_of(peers);
    p.words = rows->words;
    p.rows = rows->rows;
    p.width = rows->width;
    p.received = rows->received;
    p.received_width = rows->received_width;
    memcpy(p.begins, rows->begins, sizeof p.begins);
    memcpy(p.widths, rows->widths, sizeof p.widths);
    p.chosen = rows->chosen;
    p.of_row = rows->of_row;
    p.list = rows->list;
    p.slots = rows->slots;
    p.listed = rows->listed;
    GUMBEL_ASSERT(p.rows > 0 && p.width > 0);
    GUMBEL_ASSERT(!p.chosen || p.rows <= CUDA_EXCHANGE_ROWS_MAX);
    int64_t ctas = (p.rows * p.width + CUDA_EXCHANGE_THREADS - 1) / CUDA_EXCHANGE_THREADS;
    return cuda_launch_alone(&job, job.cuda->exchange_rows, exchange_shape(ctas), &p);
}

/* What errands are asked for by; with the context current. */
static gumbel_status share(const cuda_device *cuda, gumbel_host_collective **here,
                           gumbel_host_collective **there, gumbel_error *error)
{
    void *memory;
    CUdeviceptr at;
    CUDA_TRY(&cuda->driver, error, cuMemHostAlloc, &memory, sizeof **here,
             CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    *here = memory;
    **here = (gumbel_host_collective){0};
    CUDA_TRY(&cuda->driver, error, cuMemHostGetDevicePointer, &at, memory, 0);
    *there = (gumbel_host_collective *)(uintptr_t)at;
    return GUMBEL_OK;
}

static void free_errand(gumbel_device *device, gumbel_host_collective *here)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    if (!here || cuda_enter(cuda, NULL) != GUMBEL_OK)
        return;
    cuda->driver.cuMemFreeHost(here);
    cuda->driver.cuCtxPopCurrent(&popped);
}

static gumbel_status make_errand(gumbel_device *device, gumbel_host_collective **here,
                                 gumbel_host_collective **there, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    *here = NULL;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = share(cuda, here, there, error);
    cuda->driver.cuCtxPopCurrent(&popped);
    if (status != GUMBEL_OK) {
        free_errand(device, *here);
        *here = NULL;
    }
    return status;
}

static gumbel_status ask(gumbel_device *device, void *stream, const gumbel_gathered_rows *rows,
                         gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    gumbel_gathered_rows p = *rows;
    GUMBEL_ASSERT(p.rows.rows > 0 && p.rows.rows <= CUDA_EXCHANGE_ROWS_MAX && p.rows.chosen);
    return cuda_launch_alone(&job, job.cuda->ask_rows, exchange_shape(CUDA_EXCHANGE_CTAS), &p);
}

static gumbel_status lay(gumbel_device *device, void *stream, const gumbel_gathered_rows *rows,
                         gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    gumbel_gathered_rows p = *rows;
    int64_t pieces = (p.rows.width + CUDA_SCATTER_SLICE - 1) / CUDA_SCATTER_SLICE;
    int64_t turns = p.rows.rows * p.ranks * pieces;
    GUMBEL_ASSERT(turns > 0 && p.ranks <= GUMBEL_PEERS_RANKS);
    /* Behind an errand there mostly is nothing to lay: as many CTAs as run at once. */
    int64_t most = p.collective ? LAY_CTAS * (int64_t)job.cuda->multiprocessors : CUDA_SCATTER_CTAS;
    cuda_shape shape = {turns < most ? turns : most, CUDA_EXCHANGE_THREADS, 0, 1};
    return cuda_launch_alone(&job, job.cuda->lay_rows, shape, &p);
}

static gumbel_status look(gumbel_device *device, void *stream, int *done, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    CUresult result = cuda->driver.cuStreamQuery(stream);
    cuda->driver.cuCtxPopCurrent(&popped);
    *done = result == CUDA_SUCCESS;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY
               ? GUMBEL_OK
               : cuda_driver_fail(&cuda->driver, result, "cuStreamQuery", error);
}

/* A request that has the first tokens of rows listed: its cut is what lets few blocks serve it. */
static gumbel_problem listing(const cuda_device *cuda, const gumbel_problem *rows)
{
    gumbel_problem q = *rows;
    q.request = GUMBEL_REQUEST_TRUNCATION | GUMBEL_REQUEST_TOP | GUMBEL_REQUEST_LOGITS;
    q.truncation =
        (gumbel_truncation){.struct_size = sizeof q.truncation, .top_k = {cuda->listed_tokens, 0}};
    q.sampling = (gumbel_sampling){.struct_size = sizeof q.sampling, .num_samples = 1};
    q.first_row = 0;
    q.with_mass = 0;
    return q;
}

static gumbel_status list_size(const gumbel_device *device, const gumbel_problem *rows,
                               size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {0};
    gumbel_problem q = listing((const cuda_device *)device, rows);
    size_t draw;
    gumbel_carve(&cursor, (size_t)rows->batch, 1, sizeof(int32_t));
    GUMBEL_FORWARD(q.hidden_size > 0 ? cuda_stored_size(device, &q, &draw, error)
                                     : cuda_call_size(device, &q, 0, &draw, error));
    gumbel_carve(&cursor, draw, 1, 1);
    *bytes = cursor.used;
    return GUMBEL_OK;
}

/* What the kernels get that serve rows by lists: rows of the whole, and what a product has left of
 * this rank's, if it is one that lists them. */
static gumbel_status listed_params(gumbel_device *device, const gumbel_listing *l, int32_t ranks,
                                   cuda_top64_params *p, gumbel_error *error)
{
    gumbel_problem q = listing((const cuda_device *)device, l->rows);
    *p = (cuda_top64_params){.request = {.problem = *l->whole, .output = *l->output},
                             .received = l->said,
                             .ranks = ranks,
                             .candidates = l->said,
                             .fallback = l->left};
    p->request.problem.logits = (gumbel_tensor){0};
    return cuda_lists_blocks(device, &q)
               ? cuda_find_listed(device, &q, l->own, l->stride, l->workspace, &p->request, error)
               : GUMBEL_OK;
}

/* The product of rows that are listed from few of its blocks. */
static gumbel_status store(gumbel_device *device, const gumbel_listing *l, const gumbel_problem *q,
                           gumbel_error *error)
{
    gumbel_problem asked = *l->rows;
    gumbel_output output = *l->output;
    output.num_top = CUDA_TOP64;
    asked.request = GUMBEL_REQUEST_TRUNCATION | GUMBEL_REQUEST_TOP;
    asked.sampling.num_samples = 1;
    asked.with_mass = 0;
    return cuda_store_listed(device, q, &asked, &output, l->own, l->stride, l->workspace, error);
}

/* A launch of a CTA a row. */
static gumbel_status launch_listed(gumbel_device *device, const gumbel_problem *rows,
                                   CUfunction kernel, int64_t blocks, void *params,
                                   gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = rows->stream, .error = error};
    cuda_shape shape = {rows->batch, CUDA_REQUEST_THREADS, (int)CUDA_TOP64_BYTES_OF(blocks), 1};
    GUMBEL_ASSERT(shape.shared_bytes <= CUDA_TOP64_BYTES_MAX);
    return cuda_launch_alone(&job, kernel, shape, params);
}

/* The first tokens of rows, by what serves any request. */
static gumbel_status list_by_request(gumbel_device *device, const gumbel_listing *l,
                                     const gumbel_problem *q, gumbel_error *error)
{
    gumbel_cursor cursor = {l->workspace, 0};
    const int64_t batch = q->batch;
    int32_t *tokens = gumbel_carve(&cursor, (size_t)batch, 1, sizeof *tokens);
    const gumbel_output output = {.struct_size = sizeof output,
                                  .tokens = tokens,
                                  .status = (int32_t *)l->said,
                                  .num_top = CUDA_TOP64,
                                  .top_ids = (int32_t *)l->said + batch,
                                  .top_logits = (float *)l->said + batch * (1 + CUDA_TOP64)};
    void *workspace = cursor.base + cursor.used;
    return q->hidden_size > 0
               ? cuda_sample_stored(device, q, &output, l->own, l->stride, workspace, error)
               : cuda_sample(device, q, &output, workspace, error);
}

static gumbel_status list(gumbel_device *device, const gumbel_listing *l, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_problem q = listing(cuda, l->rows);
    cuda_top64_params p;
    if (!cuda_lists_blocks(device, &q))
        return list_by_request(device, l, &q, error);
    GUMBEL_FORWARD(store(device, l, &q, error));
    GUMBEL_FORWARD(listed_params(device, l, 1, &p, error));
    return launch_listed(device, l->rows, cuda->list_rows, p.request.blocks, &p, error);
}

static gumbel_status draw_listed(gumbel_device *device, const gumbel_listing *l,
                                 const uint32_t *said, int64_t stride, int32_t ranks,
                                 gumbel_error *error)
{
    cuda_top64_params p;
    GUMBEL_FORWARD(listed_params(device, l, ranks, &p, error));
    p.received = said;
    p.stride = stride;
    return launch_listed(device, l->rows, ((const cuda_device *)device)->draw_candidates,
                         p.request.blocks, &p, error);
}

static gumbel_status tell_listed(gumbel_device *device, const gumbel_listing *l,
                                 const gumbel_peers *peers, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_problem q = listing(cuda, l->rows);
    const int blocks = cuda_lists_blocks(device, &q);
    cuda_top64_exchange_params p = {.exchange = exchange_of(peers)};
    GUMBEL_ASSERT(q.batch <= GUMBEL_PEERS_TOP64_ROWS);
    GUMBEL_ASSERT(q.batch * GUMBEL_RANK_WORDS <= p.exchange.room);
    GUMBEL_FORWARD(blocks ? store(device, l, &q, error) : list_by_request(device, l, &q, error));
    GUMBEL_FORWARD(listed_params(device, l, peers->ranks, &p.draw, error));
    return launch_listed(device, l->rows, blocks ? cuda->tell_rows : cuda->tell_candidates,
                         p.draw.request.blocks, &p, error);
}

static gumbel_status spread(gumbel_device *device, void *stream, const gumbel_output *from,
                            const gumbel_output *to, int64_t batch, int32_t num_samples,
                            const int32_t *rows, const int32_t *count, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_scatter_outputs_params p = {.list = rows, .count = count};
    int kinds = 0;
#define SPREAD(field, each)                                                                        \
    if (to->field)                                                                                 \
    p.of[kinds++] =                                                                                \
        (struct cuda_scattered_output){(const uint32_t *)from->field, (uint32_t *)to->field, each}
    SPREAD(tokens, num_samples);
    SPREAD(logprobs, num_samples);
    SPREAD(scores, num_samples);
    SPREAD(ranks, num_samples);
    SPREAD(lse, 1);
    SPREAD(status, 1);
    SPREAD(kept, 1);
#undef SPREAD
    GUMBEL_ASSERT(kinds <= CUDA_SCATTER_OUTPUTS_MAX);
    cuda_shape shape = {batch, CUDA_SCATTER_OUTPUTS_THREADS, 0, 1};
    return cuda_launch_alone(&job, job.cuda->spread_rows, shape, &p);
}

const gumbel_rank_calls cuda_rank_calls = {
    .edit = cuda_edit,
    .make_errand = make_errand,
    .free_errand = free_errand,
    .ask = ask,
    .lay = lay,
    .make = cuda_peers_make,
    .join = cuda_peers_join,
    .part = cuda_peers_part,
    .look = look,
    .exchange = exchange,
    .exchange_rows = exchange_rows,
    .list_size = list_size,
    .list = list,
    .draw_listed = draw_listed,
    .tell_listed = tell_listed,
    .draw_left = cuda_sample_left,
    .spread = spread,
    .draw_parts = cuda_draw_parts,
};
