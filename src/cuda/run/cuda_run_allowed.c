/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches the kernels of rows whose masks allow few tokens: one that multiplies their weights and
 * draws; or the product of their weights, and a draw from their logits.
 */
#include "core/fail.h"
#include "cuda/fused/allowed/allowed_params.h"
#include "cuda/policy/screen_policy.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_run_allowed_fused(const cuda_job *job)
{
    cuda_allowed_draw_params s = {.call = job->params, .reads_lists = job->reads_lists};
    const gumbel_problem *q = &s.call.problem;
    const int64_t groups = (q->batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    const int64_t ctas = job->cuda->multiprocessors, members = ctas > groups ? ctas / groups : 1;
    const cuda_shape shape = {groups * members, CUDA_ALLOWED_THREADS, CUDA_ALLOWED_FUSED_BYTES, 1};
    void *arguments[] = {&s};
    s.call.splits = (int32_t)members;
    s.call.tag = cuda_new_tag(job->cuda);
    GUMBEL_ASSERT(q->sampling.num_samples <= CUDA_LOGITS_SAMPLES);
    GUMBEL_ASSERT((size_t)(members * q->batch * q->sampling.num_samples) <=
                  job->workspace.summaries_max);
    GUMBEL_ASSERT(job->reads_lists ? q->transforms.allowed.offsets != NULL
                                   : q->transforms.mask.data != NULL);
    GUMBEL_ASSERT(q->weight.dtype != GUMBEL_FLOAT32 && q->hidden.dtype == q->weight.dtype);
    return cuda_launch(job, job->cuda->draw_allowed_fused[cuda_dtype_of(q->weight.dtype)], shape,
                       arguments);
}

gumbel_status cuda_run_allowed_product(const cuda_job *job)
{
    cuda_allowed_params s = {.call = job->params};
    const gumbel_problem *q = &s.call.problem;
    const int64_t groups = (q->batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    const int64_t ctas = job->cuda->multiprocessors;
    const cuda_shape shape = {ctas > groups ? ctas : groups, CUDA_SCREEN_SCORE_THREADS,
                              CUDA_ALLOWED_PRODUCT_BYTES, 1};
    void *arguments[] = {&s};
    if (job->reads_lists) {
        s.new_masks = job->workspace.allowed;
        s.mask_words = cuda_allowed_words(q);
        s.mask_tiles = (32 * s.mask_words + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
        GUMBEL_ASSERT(s.new_masks && q->transforms.allowed.offsets);
    }
    GUMBEL_ASSERT(s.call.logits_out && q->features & GUMBEL_FEATURE_MASK &&
                  q->transforms.mask.data);
    GUMBEL_ASSERT(q->weight.dtype != GUMBEL_FLOAT32 && q->hidden.dtype == q->weight.dtype);
    return cuda_launch(job, job->cuda->store_allowed[cuda_dtype_of(q->weight.dtype)], shape,
                       arguments);
}

gumbel_status cuda_run_draw_allowed(const cuda_job *job)
{
    cuda_params p = job->params;
    const gumbel_problem *q = &p.problem;
    const int64_t samples = q->sampling.num_samples, range = cuda_range_of(q);
    const int64_t groups = (samples + CUDA_LOGITS_SAMPLES - 1) / CUDA_LOGITS_SAMPLES;
    const int64_t splits = cuda_max_splits(job->cuda->multiprocessors, q->batch, samples);
    p.split_size = cuda_split_size(range, splits, CUDA_ALLOWED_SPLIT_UNIT);
    p.splits = (int32_t)((range + p.split_size - 1) / p.split_size);
    p.tag = cuda_new_tag(job->cuda);
    GUMBEL_ASSERT(p.splits >= 1 && p.splits <= splits && q->transforms.mask.data);
    GUMBEL_ASSERT((size_t)(p.splits * q->batch * samples) <= job->workspace.summaries_max);
    void *arguments[] = {&p};
    const cuda_shape shape = {p.splits * q->batch * groups, CUDA_TRUNCATED_THREADS,
                              CUDA_ALLOWED_DRAW_BYTES, 1};
    return cuda_launch(job, job->cuda->draw_allowed, shape, arguments);
}
