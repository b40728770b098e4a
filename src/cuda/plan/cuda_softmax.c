/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores rows of probabilities: of the logits or, with transforms or truncation, of the processed
 * rows.
 */
#include "core/fail.h"
#include "cuda/plan/cuda_plan.h"

/* Tokens that a CTA loads at a time. */
#define SOFTMAX_UNIT (CUDA_SOFTMAX_THREADS / 32 * CUDA_LOGITS_STEP)

/* A softmax of rows that hold z. */
static gumbel_problem read_processed(const gumbel_problem *p, const float *rows, int64_t stride)
{
    return (gumbel_problem){
        .batch = p->batch,
        .vocab = p->vocab,
        .logits = cuda_rows_at(rows, p, stride),
        .scale = 1.0f,
        .end_token = p->vocab,
        .sampling = {.struct_size = sizeof p->sampling, .num_samples = 1},
    };
}

gumbel_status cuda_store_probabilities(gumbel_device *device, const gumbel_problem *problem,
                                       const gumbel_plan *plan, gumbel_row_array probabilities,
                                       void *workspace, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = problem->stream, .error = error};
    cuda_softmax_params p = {
        .problem = *problem, .probabilities = probabilities.data, .stride = probabilities.stride};
    gumbel_cursor cursor = {workspace, 0};
    if (problem->features) {
        GUMBEL_FORWARD(
            cuda_store_processed(device, problem, plan, probabilities, workspace, error));
        p.problem = read_processed(problem, p.probabilities, p.stride);
    }
    /* At most as many as a draw from logits has summaries. */
    int64_t splits =
        cuda_max_splits((int64_t)cuda->multiprocessors * CUDA_SOFTMAX_CTAS, problem->batch, 1);
    p.inverse_cap = cuda_inverse_cap(&p.problem);
    p.split_size = cuda_split_size(problem->vocab, splits, SOFTMAX_UNIT);
    p.splits = (int32_t)((problem->vocab + p.split_size - 1) / p.split_size);
    if (problem->batch > INT32_MAX / p.splits)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B is more than one call on CUDA takes");
    p.masses =
        gumbel_carve_array(&cursor, (size_t)problem->batch, (size_t)p.splits, sizeof *p.masses);
    cuda_dtype dtype = cuda_dtype_of(p.problem.logits.dtype);
    cuda_shape first = {problem->batch * p.splits, CUDA_SOFTMAX_THREADS, 0, 0}, second = first;
    void *arguments[] = {&p};
    second.overlaps = 1;
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    gumbel_status status = cuda_launch(&job, cuda->sum_masses[dtype], first, arguments);
    if (status == GUMBEL_OK)
        status = cuda_launch(&job, cuda->normalise[dtype], second, arguments);
    cuda_pop_context(cuda);
    return status;
}
