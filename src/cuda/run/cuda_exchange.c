/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of ranks on GPUs that need no plan: exchanges through peer memory, host collectives, and
 * scattering of gathered rows and outputs.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

_Static_assert(CUDA_EXCHANGE_ROWS_MAX == GUMBEL_PEERS_CHOSEN_ROWS, "as peers.h documents");

/* CTAs of a multiprocessor that scatter rows after a host collective. */
#define SCATTER_CTAS 4

cuda_exchange_params cuda_exchange_of(const gumbel_peers *peers)
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

/* At most CUDA_EXCHANGE_CTAS, so that all run at once. */
static cuda_shape exchange_shape(int64_t ctas)
{
    return (cuda_shape){ctas < CUDA_EXCHANGE_CTAS ? ctas : CUDA_EXCHANGE_CTAS,
                        CUDA_EXCHANGE_THREADS, 0, 1};
}

gumbel_status cuda_exchange_summaries(gumbel_device *device, void *stream,
                                      const gumbel_peers *peers, const gumbel_finish_call *call,
                                      gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_exchange_params p = cuda_exchange_of(peers);
    p.words = (const uint32_t *)call->summaries;
    p.draws = call->batch * call->num_samples;
    p.num_samples = call->num_samples;
    p.output = *call->output;
    GUMBEL_ASSERT(p.draws > 0 && p.draws * (int64_t)(sizeof(gumbel_summary) / 4) <= p.room);
    /* One draw a CTA, so that few draws use many multiprocessors. */
    return cuda_launch_in_context(&job, job.cuda->exchange_summaries, exchange_shape(p.draws), &p);
}

gumbel_status cuda_exchange_rows(gumbel_device *device, void *stream, const gumbel_peers *peers,
                                 const gumbel_peer_rows *rows, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_exchange_params p = cuda_exchange_of(peers);
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
    return cuda_launch_in_context(&job, job.cuda->exchange_rows, exchange_shape(ctas), &p);
}

/* Allocate a host collective's request block, with the context current. */
static gumbel_status allocate_host_collective(const cuda_device *cuda,
                                              gumbel_host_collective **here,
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

void cuda_free_host_collective(gumbel_device *device, gumbel_host_collective *here)
{
    cuda_device *cuda = (cuda_device *)device;
    if (!here || cuda_push_context(cuda, NULL) != GUMBEL_OK)
        return;
    cuda->driver.cuMemFreeHost(here);
    cuda_pop_context(cuda);
}

gumbel_status cuda_create_host_collective(gumbel_device *device, gumbel_host_collective **here,
                                          gumbel_host_collective **there, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    *here = NULL;
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    gumbel_status status = allocate_host_collective(cuda, here, there, error);
    cuda_pop_context(cuda);
    if (status != GUMBEL_OK) {
        cuda_free_host_collective(device, *here);
        *here = NULL;
    }
    return status;
}

gumbel_status cuda_request_rows(gumbel_device *device, void *stream,
                                const gumbel_gathered_rows *rows, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    gumbel_gathered_rows p = *rows;
    GUMBEL_ASSERT(p.rows.rows > 0 && p.rows.rows <= CUDA_EXCHANGE_ROWS_MAX && p.rows.chosen);
    return cuda_launch_in_context(&job, job.cuda->request_rows, exchange_shape(CUDA_EXCHANGE_CTAS),
                                  &p);
}

gumbel_status cuda_scatter_rows(gumbel_device *device, void *stream,
                                const gumbel_gathered_rows *rows, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    gumbel_gathered_rows p = *rows;
    int64_t tiles = (p.rows.width + CUDA_SCATTER_TILE - 1) / CUDA_SCATTER_TILE;
    int64_t turns = p.rows.rows * p.ranks * tiles;
    GUMBEL_ASSERT(turns > 0 && p.ranks <= GUMBEL_PEERS_RANKS);
    /* After a host collective there usually are no rows: only as many CTAs as run at once. */
    int64_t max_ctas =
        p.collective ? SCATTER_CTAS * (int64_t)job.cuda->multiprocessors : CUDA_SCATTER_CTAS;
    cuda_shape shape = {turns < max_ctas ? turns : max_ctas, CUDA_EXCHANGE_THREADS, 0, 1};
    return cuda_launch_in_context(&job, job.cuda->scatter_rows, shape, &p);
}

gumbel_status cuda_poll_stream(gumbel_device *device, void *stream, int *done, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    CUresult result = cuda->driver.cuStreamQuery(stream);
    cuda_pop_context(cuda);
    *done = result == CUDA_SUCCESS;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY
               ? GUMBEL_OK
               : cuda_driver_fail(&cuda->driver, result, "cuStreamQuery", error);
}

gumbel_status cuda_scatter_outputs(gumbel_device *device, void *stream, const gumbel_output *from,
                                   const gumbel_output *to, int64_t batch, int32_t num_samples,
                                   const int32_t *rows, const int32_t *count, gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = stream, .error = error};
    cuda_scatter_outputs_params p = {.list = rows, .count = count};
    int kinds = 0;
#define SCATTER(field, each)                                                                       \
    if (to->field)                                                                                 \
    p.of[kinds++] =                                                                                \
        (struct cuda_scattered_output){(const uint32_t *)from->field, (uint32_t *)to->field, each}
    SCATTER(tokens, num_samples);
    SCATTER(logprobs, num_samples);
    SCATTER(scores, num_samples);
    SCATTER(ranks, num_samples);
    SCATTER(lse, 1);
    SCATTER(status, 1);
    SCATTER(kept, 1);
#undef SCATTER
    GUMBEL_ASSERT(kinds <= CUDA_SCATTER_OUTPUTS_MAX);
    cuda_shape shape = {batch, CUDA_SCATTER_OUTPUTS_THREADS, 0, 1};
    return cuda_launch_in_context(&job, job.cuda->scatter_outputs, shape, &p);
}
