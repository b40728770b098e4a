/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches kernels that transform and truncate rows on every GPU: edits followed by a draw, a
 * candidate filter by several CTAs a row, and one CTA a row.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

cuda_truncated_params cuda_get_truncated_params(const cuda_job *job)
{
    return (cuda_truncated_params){
        .problem = job->params.problem,
        .inverse_cap = job->params.inverse_cap,
        .output = job->params.output,
        .partials = job->params.partials,
        .processed = job->processed.data,
        .processed_stride = job->processed.stride,
        .processed_dtype = job->processed.dtype,
    };
}

gumbel_status cuda_launch_rows(const cuda_job *job, cuda_truncated_params *p, int64_t rows,
                               CUfunction kernel, int threads, int shared_bytes, int overlaps)
{
    void *arguments[] = {p};
    GUMBEL_ASSERT(p->splits >= 1 && rows >= 1 && rows <= p->problem.batch);
    GUMBEL_ASSERT(p->problem.hidden_size == 0 && p->problem.logits.data);
    GUMBEL_ASSERT(p->problem.logits.stride >= p->problem.vocab);
    GUMBEL_ASSERT(!p->processed || p->processed_stride >= p->problem.vocab);
    if (p->problem.batch > INT32_MAX / p->splits)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B is more than one call on CUDA takes");
    cuda_shape shape = {rows * p->splits, threads, shared_bytes, overlaps};
    return cuda_launch(job, kernel, shape, arguments);
}

/* ---------------------------------------------------------------------------------- edits ---- */

gumbel_status cuda_run_allow(const cuda_job *job, const gumbel_problem *caller)
{
    cuda_allow_params p = {.problem = *caller,
                           .allowed = job->workspace.allowed,
                           .words = cuda_allowed_words(caller),
                           .masked = (caller->features & GUMBEL_FEATURE_MASK) != 0};
    void *arguments[] = {&p};
    if (!(caller->features & GUMBEL_FEATURE_ALLOWED))
        return GUMBEL_OK;
    p.tiles = (32 * p.words + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
    GUMBEL_ASSERT(p.allowed && p.words >= 1 && p.tiles >= 1);
    if (caller->batch > INT32_MAX / p.tiles)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B is more than one call on CUDA takes");
    cuda_shape shape = {caller->batch * p.tiles, CUDA_THREADS, 0, 1};
    return cuda_launch(job, job->cuda->allow, shape, arguments);
}

void cuda_carve_edit(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                     cuda_workspace *workspace)
{
    (void)cuda;
    /* Logits that a product stored are edited in place. */
    size_t rows = p->hidden_size > 0 ? 0 : (size_t)p->batch;
    workspace->edited = gumbel_carve_array(cursor, rows, (size_t)cuda_row_stride(p), sizeof(float));
}

gumbel_status cuda_launch_edit(const cuda_job *job, float *rows, int64_t stride)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    const gumbel_problem *q = &p.problem;
    p.processed = rows;
    p.processed_stride = stride;
    p.processed_dtype = GUMBEL_FLOAT32;
    GUMBEL_ASSERT(rows && stride >= q->vocab);
    GUMBEL_ASSERT(!(q->features & ~(uint32_t)GUMBEL_FEATURE_TRANSFORMS));
    p.splits = (int32_t)((cuda_range_of(q) + CUDA_TRUNCATED_TILE - 1) / CUDA_TRUNCATED_TILE);
    return cuda_launch_rows(job, &p, q->batch, job->cuda->edit_logits, CUDA_TRUNCATED_THREADS,
                            CUDA_EDIT_BYTES, 1);
}

gumbel_status cuda_run_edit(const cuda_job *job)
{
    cuda_job draw = *job;
    gumbel_problem *q = &draw.params.problem;
    float *rows = job->workspace.logits ? job->workspace.logits : job->workspace.edited;
    const int64_t stride = cuda_row_stride(q);
    GUMBEL_FORWARD(cuda_launch_edit(job, rows, stride));
    q->features = 0;
    q->scale = 1.0f;
    q->soft_cap = draw.params.inverse_cap = 0.0f;
    q->logits = cuda_rows_at(rows, q, stride);
    return cuda_run_draw(&draw);
}

/* ----------------------------------------------------------------------------- two passes ---- */

/* CTAs of a row, and tokens of each. */
typedef struct row_split {
    int64_t splits, split_size;
} row_split;

static row_split split_rows(const cuda_device *cuda, const gumbel_problem *p)
{
    int64_t range = cuda_range_of(p);
    int64_t ctas = (int64_t)cuda->multiprocessors * CUDA_TRUNCATED_CTAS;
    int64_t max_splits = ctas > p->batch ? ctas / p->batch : 1;
    row_split split = {.split_size = cuda_split_size(range, max_splits, CUDA_TRUNCATED_TILE)};
    split.splits = (range + split.split_size - 1) / split.split_size;
    GUMBEL_ASSERT(split.split_size > 0 && split.split_size % CUDA_TRUNCATED_TILE == 0);
    GUMBEL_ASSERT(split.splits >= 1 && split.splits * split.split_size >= range);
    return split;
}

void cuda_carve_two_pass(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                         cuda_workspace *workspace)
{
    size_t batch = (size_t)p->batch, splits = (size_t)split_rows(cuda, p).splits;
    workspace->counters =
        gumbel_carve_array(cursor, batch, CUDA_THRESHOLD_WORDS, sizeof *workspace->counters);
    workspace->split_results =
        gumbel_carve_array(cursor, batch, splits, sizeof *workspace->split_results);
    workspace->candidates =
        gumbel_carve_array(cursor, splits > 1 ? batch : 0, splits,
                           CUDA_TRUNCATED_CANDIDATES * sizeof *workspace->candidates);
}

gumbel_status cuda_run_two_pass(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    row_split split = split_rows(job->cuda, &p.problem);
    p.splits = (int32_t)split.splits;
    p.split_size = split.split_size;
    p.tag = cuda_new_tag(job->cuda);
    p.counters = job->workspace.counters;
    p.split_results = job->workspace.split_results;
    p.candidates = job->workspace.candidates;
    GUMBEL_ASSERT(p.counters && p.split_results && (p.candidates || p.splits == 1));
    return cuda_launch_rows(job, &p, p.problem.batch, job->cuda->truncated_two_pass,
                            CUDA_TRUNCATED_THREADS, CUDA_TWO_PASS_BYTES, 1);
}

/* -------------------------------------------------------------------------- one CTA a row ---- */

gumbel_status cuda_run_alone(const cuda_job *job)
{
    cuda_truncated_params p = cuda_get_truncated_params(job);
    p.splits = 1;
    return cuda_launch_rows(job, &p, p.problem.batch, job->cuda->truncated_naive,
                            CUDA_TRUNCATED_THREADS, CUDA_EDIT_BYTES, 0);
}

/* -------------------------------------------------------------------------------- maximum ---- */

void cuda_carve_max(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_limits *limits)
{
    /* An unaligned first token adds a unit to each array. */
    gumbel_problem p = {.batch = limits->batch,
                        .vocab = limits->vocab_size,
                        .first_token = CUDA_MAXIMA_BLOCK - 1,
                        .end_token = CUDA_MAXIMA_BLOCK - 1 + limits->vocab_size,
                        .mask_by_row = 1,
                        .features = GUMBEL_FEATURE_END - 1};
    size_t batch = (size_t)p.batch, ctas = (size_t)cuda->multiprocessors * CUDA_TRUNCATED_CTAS;
    size_t splits = batch > ctas ? batch : ctas;
    cuda_workspace workspace;
    gumbel_carve_array(cursor, batch, (size_t)cuda_allowed_words(&p), sizeof *workspace.allowed);
    GUMBEL_ASSERT(limits->vocab_size >= 1);
    gumbel_carve_array(cursor, batch, (size_t)cuda_row_stride(&p), sizeof *workspace.logits);
    gumbel_carve_array(cursor, batch, 1, sizeof *workspace.row_status);
    cuda_carve_statistics(cursor, cuda, &p, &workspace);
    cuda_carve_bounded(cursor, cuda, &p, &workspace);
    cuda_carve_pivots(cursor, cuda, &p, &workspace);
    gumbel_carve_array(cursor, splits, 1, sizeof *workspace.split_results);
    gumbel_carve_array(cursor, splits, CUDA_TRUNCATED_CANDIDATES, sizeof *workspace.candidates);
    /* Suffices for the exchanges of cooperative launches: no two-pass serves rows beside them. */
    _Static_assert((CUDA_GRID_STEP_WORDS + CUDA_GRID_MEMORY_WORDS) * sizeof(uint64_t) <=
                       CUDA_GRID_CTAS * CUDA_TRUNCATED_CANDIDATES * sizeof(cuda_candidate),
                   "a group takes less than the candidates of its CTAs");
}
