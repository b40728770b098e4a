/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of ranks on GPUs that need a plan: each rank finds its local top-64 candidates of a row,
 * and draws from the candidates of all ranks.
 */
#include "core/fail.h"
#include "cuda/plan/cuda_plan.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/step/ranks/top64_params.h"

_Static_assert(CUDA_TOP64 == GUMBEL_RANK_TOP, "as peers.h documents");
_Static_assert(GUMBEL_PEERS_TOP64_ROWS <= CUDA_EXCHANGE_CTAS, "their CTAs run at once");

/* How a rank finds its candidates. */
typedef struct top64_plan {
    gumbel_problem problem; /* the rank's rows, truncated to their top 64 */
    cuda_plan plan;         /* of a head; unused if logits are given */
    int from_blocks;        /* from the blocks of the product; 0: by a sampling call */
} top64_plan;

/* The rank's rows, truncated to their top 64, so that few blocks serve them. */
static gumbel_problem request_top64(const cuda_device *cuda, const gumbel_problem *rows)
{
    gumbel_problem q = *rows;
    q.features = GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_LOGITS;
    q.truncation =
        (gumbel_truncation){.struct_size = sizeof q.truncation, .top_k = {cuda->top64_limit, 0}};
    q.sampling = (gumbel_sampling){.struct_size = sizeof q.sampling, .num_samples = 1};
    q.first_row = 0;
    q.with_mass = 0;
    return q;
}

static gumbel_status plan_top64(const gumbel_device *device, const gumbel_problem *rows,
                                top64_plan *t, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    *t = (top64_plan){.problem = request_top64(cuda, rows)};
    if (rows->hidden_size == 0)
        return GUMBEL_OK;
    GUMBEL_FORWARD(cuda_plan_stored(&t->plan, cuda, &t->problem, error));
    t->from_blocks = cuda_plan_finds_top64(&t->plan, &t->problem);
    return GUMBEL_OK;
}

static gumbel_status size_top64(const gumbel_device *device, const gumbel_problem *rows,
                                size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {0};
    top64_plan t;
    GUMBEL_FORWARD(plan_top64(device, rows, &t, error));
    gumbel_carve_array(&cursor, (size_t)rows->batch, 1, sizeof(int32_t));
    if (rows->hidden_size > 0) {
        cuda_carve_plan(&t.plan, &cursor, (const cuda_device *)device, &t.problem);
    } else {
        gumbel_plan sample;
        GUMBEL_FORWARD(cuda_plan_backend(device, &t.problem, 0, &sample, error));
        gumbel_carve_array(&cursor, sample.workspace_bytes, 1, 1);
    }
    *bytes = cursor.used;
    return GUMBEL_OK;
}

/* Parameters of the top-64 kernels: rows of the whole vocabulary, and the blocks of this rank's. */
static cuda_top64_params get_top64_params(gumbel_device *device, const gumbel_top64_call *l,
                                          const top64_plan *t, int32_t ranks)
{
    cuda_top64_params p = {.rows = {.problem = *l->whole, .output = *l->output},
                           .received = l->candidates,
                           .ranks = ranks,
                           .candidates = l->candidates,
                           .fallback = l->unresolved};
    p.rows.problem.logits = (gumbel_tensor){0};
    if (t->from_blocks)
        cuda_set_top64_blocks(device, &t->plan, &t->problem, l->logits, l->stride, l->workspace,
                              &p.rows);
    return p;
}

/* Run the product of rows whose candidates are found in its blocks. */
static gumbel_status store_logits(gumbel_device *device, const gumbel_top64_call *l,
                                  const top64_plan *t, gumbel_error *error)
{
    gumbel_problem requested = *l->rows;
    gumbel_output output = *l->output;
    output.num_top = CUDA_TOP64;
    requested.features = GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_TOP;
    requested.sampling.num_samples = 1;
    requested.with_mass = 0;
    return cuda_store_top64_logits(device, &t->plan, &t->problem, &requested, &output, l->logits,
                                   l->stride, l->workspace, error);
}

/* Find candidates as the top tokens of a sampling call. */
static gumbel_status sample_top64(gumbel_device *device, const gumbel_top64_call *l,
                                  const top64_plan *t, gumbel_error *error)
{
    gumbel_cursor cursor = {l->workspace, 0};
    const gumbel_problem *q = &t->problem;
    const int64_t batch = q->batch;
    int32_t *tokens = gumbel_carve_array(&cursor, (size_t)batch, 1, sizeof *tokens);
    const gumbel_output output = {.struct_size = sizeof output,
                                  .tokens = tokens,
                                  .status = (int32_t *)l->candidates,
                                  .num_top = CUDA_TOP64,
                                  .top_ids = (int32_t *)l->candidates + batch,
                                  .top_logits = (float *)l->candidates + batch * (1 + CUDA_TOP64)};
    void *workspace = cursor.base + cursor.used;
    return q->hidden_size > 0 ? cuda_sample_stored(device, &t->plan, q, &output, l->logits,
                                                   l->stride, workspace, error)
                              : cuda_sample(device, q, NULL, &output, workspace, error);
}

/* Queue a kernel of one CTA a row. */
static gumbel_status launch_top64(gumbel_device *device, const gumbel_problem *rows,
                                  CUfunction kernel, int64_t blocks, void *params,
                                  gumbel_error *error)
{
    cuda_job job = {.cuda = (cuda_device *)device, .stream = rows->stream, .error = error};
    cuda_shape shape = {rows->batch, CUDA_TRUNCATED_THREADS, (int)CUDA_TOP64_BYTES_OF(blocks), 1};
    GUMBEL_ASSERT(shape.shared_bytes <= CUDA_TOP64_BYTES_MAX);
    return cuda_launch_in_context(&job, kernel, shape, params);
}

static gumbel_status find_top64(gumbel_device *device, const gumbel_top64_call *l,
                                gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    top64_plan t;
    GUMBEL_FORWARD(plan_top64(device, l->rows, &t, error));
    if (!t.from_blocks)
        return sample_top64(device, l, &t, error);
    GUMBEL_FORWARD(store_logits(device, l, &t, error));
    cuda_top64_params p = get_top64_params(device, l, &t, 1);
    return launch_top64(device, l->rows, cuda->select_top64, p.rows.blocks, &p, error);
}

static gumbel_status draw_top64(gumbel_device *device, const gumbel_top64_call *l,
                                const uint32_t *candidates, int64_t stride, int32_t ranks,
                                gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    top64_plan t;
    GUMBEL_FORWARD(plan_top64(device, l->rows, &t, error));
    cuda_top64_params p = get_top64_params(device, l, &t, ranks);
    p.received = candidates;
    p.stride = stride;
    return launch_top64(device, l->rows, cuda->draw_top64, p.rows.blocks, &p, error);
}

static gumbel_status exchange_top64(gumbel_device *device, const gumbel_top64_call *l,
                                    const gumbel_peers *peers, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    top64_plan t;
    GUMBEL_FORWARD(plan_top64(device, l->rows, &t, error));
    cuda_top64_exchange_params p = {.exchange = cuda_exchange_of(peers)};
    GUMBEL_ASSERT(t.problem.batch <= GUMBEL_PEERS_TOP64_ROWS);
    GUMBEL_ASSERT(t.problem.batch * GUMBEL_RANK_WORDS <= p.exchange.room);
    GUMBEL_FORWARD(t.from_blocks ? store_logits(device, l, &t, error)
                                 : sample_top64(device, l, &t, error));
    p.draw = get_top64_params(device, l, &t, peers->ranks);
    return launch_top64(device, l->rows,
                        t.from_blocks ? cuda->select_exchange_top64 : cuda->exchange_top64,
                        p.draw.rows.blocks, &p, error);
}

const gumbel_rank_calls cuda_rank_calls = {
    .store_edited = cuda_store_edited,
    .create_host_collective = cuda_create_host_collective,
    .free_host_collective = cuda_free_host_collective,
    .request_rows = cuda_request_rows,
    .scatter_rows = cuda_scatter_rows,
    .create_peers = cuda_create_peers,
    .connect_peers = cuda_connect_peers,
    .release_peers = cuda_release_peers,
    .poll_stream = cuda_poll_stream,
    .exchange_summaries = cuda_exchange_summaries,
    .exchange_rows = cuda_exchange_rows,
    .top64_size = size_top64,
    .find_top64 = find_top64,
    .draw_top64 = draw_top64,
    .exchange_top64 = exchange_top64,
    .draw_unresolved = cuda_draw_unresolved,
    .scatter_outputs = cuda_scatter_outputs,
    .draw_group = cuda_draw_group,
};
