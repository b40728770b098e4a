/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that are laid out before a draw, and accepted behind it. By a rule that weighs
 * probabilities rows are cut into parts, so that few rows keep the GPU busy, too.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"
#include "drafts/weighing.h"

/* Parts of so many rows of a weighing, and their tokens, for so many CTAs a multiprocessor. */
static void cut_rows(gumbel_weighing *p, const cuda_device *cuda, int64_t rows, int ctas)
{
    int64_t range = cuda_range_of(&p->by.target);
    int64_t most = cuda_max_parts((int64_t)cuda->multiprocessors * ctas, rows, 1);
    p->chunk = cuda_chunk(range, most, CUDA_MASS_UNIT);
    p->parts = (int32_t)((range + p->chunk - 1) / p->chunk);
    GUMBEL_ASSERT(p->parts >= 1 && p->parts <= most && p->chunk % CUDA_MASS_UNIT == 0);
}

/* Models whose rows are weighed: not the draft's, where its call has told what they come to. */
static int64_t models_of(const gumbel_proposal *by) { return by->told ? 1 : 2; }

/* Lay out what a weighing takes. */
static gumbel_weighing lay_out(gumbel_cursor *cursor, const cuda_device *cuda,
                               const gumbel_verification *v, const gumbel_proposal *by)
{
    const size_t rows = (size_t)v->rows, requests = (size_t)v->draft.requests;
    gumbel_weighing p = {.verification = *v, .by = *by};
    p.inverse_caps[0] = cuda_inverse_cap(&by->target);
    p.inverse_caps[1] = cuda_inverse_cap(&by->draft);
    p.row_counters = gumbel_carve(cursor, 2 * rows, 1, sizeof *p.row_counters);
    p.counters = gumbel_carve(cursor, requests, 1, sizeof *p.counters);
    cut_rows(&p, cuda, models_of(by) * v->rows, CUDA_MASS_CTAS);
    p.masses = gumbel_carve(cursor, 2 * rows, (size_t)p.parts, sizeof *p.masses);
    cut_rows(&p, cuda, v->draft.requests, CUDA_RESIDUAL_CTAS);
    p.contenders = gumbel_carve(cursor, rows, (size_t)p.parts, sizeof *p.contenders);
    p.lists = gumbel_carve(cursor, by->dots ? requests : 0, (size_t)p.parts,
                           CUDA_MASS_THREADS / 32 * sizeof *p.lists);
    return p;
}

size_t cuda_weighing_size(const gumbel_device *device, const gumbel_verification *v,
                          const gumbel_proposal *by)
{
    gumbel_cursor cursor = {0};
    lay_out(&cursor, (const cuda_device *)device, v, by);
    return cursor.used;
}

gumbel_status cuda_expand_drafts(gumbel_device *device, void *stream, const gumbel_verification *v,
                                 const gumbel_proposal *by, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    int64_t threads = by && v->draft.requests > v->rows ? v->draft.requests : v->rows;
    cuda_shape shape = {(threads + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS, 0, 1};
    if (by) {
        gumbel_weighing p = {.verification = *v, .by = *by};
        return cuda_launch_alone(&job, cuda->expand_weighed, shape, &p);
    }
    gumbel_verification copy = *v;
    return cuda_launch_alone(&job, cuda->expand_drafts, shape, &copy);
}

/* Queue a kernel over the parts of `rows`. */
static gumbel_status launch(const cuda_job *job, CUfunction kernel, gumbel_weighing *p,
                            int64_t rows, int ctas, int shared_bytes)
{
    cut_rows(p, job->cuda, rows, ctas);
    p->tag = cuda_tag(job->cuda);
    if (rows > INT32_MAX / p->parts)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "draft",
                           "so many rows are more than one call on CUDA takes");
    cuda_shape shape = {rows * p->parts, CUDA_MASS_THREADS, shared_bytes, 1};
    return cuda_launch_alone(job, kernel, shape, p);
}

/* Weigh drafts, and walk by the verdicts. */
static gumbel_status weigh(const cuda_job *job, const gumbel_verification *v,
                           const gumbel_proposal *by)
{
    cuda_device *cuda = job->cuda;
    const int nodes = v->draft.max_nodes * (int)sizeof(gumbel_node);
    gumbel_cursor cursor = {by->workspace, 0};
    gumbel_weighing p = lay_out(&cursor, cuda, v, by);
    GUMBEL_ASSERT(by->listed == 0 && by->target_logits.logits.data);
    GUMBEL_ASSERT(by->dots || by->draft_logits.logits.data);
    GUMBEL_FORWARD(launch(job, cuda->weigh_drafts, &p, models_of(by) * v->rows, CUDA_MASS_CTAS,
                          CUDA_MASS_BYTES));
    if (v->draft.rule == GUMBEL_RULE_BLOCK)
        GUMBEL_FORWARD(launch(job, cuda->sum_drafts, &p, v->rows, CUDA_MASS_CTAS, CUDA_MASS_BYTES));
    return launch(job, cuda->race_drafts, &p, v->draft.requests, CUDA_RESIDUAL_CTAS,
                  CUDA_MASS_BYTES + nodes);
}

gumbel_status cuda_accept_drafts(gumbel_device *device, void *stream, const gumbel_verification *v,
                                 const gumbel_proposal *by, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (by)
        return weigh(&job, v, by);
    int nodes = v->draft.max_nodes * (int)sizeof(gumbel_node);
    cuda_shape shape = {v->draft.requests, CUDA_DRAFT_THREADS, nodes, 1};
    gumbel_verification copy = *v;
    return cuda_launch_alone(&job, cuda->accept_drafts, shape, &copy);
}
