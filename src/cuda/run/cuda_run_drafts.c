/* SPDX-License-Identifier: Apache-2.0
 *
 * Expands drafts into rows before a draw, and accepts drafts after it. Kernels of rules that
 * compare probabilities split rows among CTAs, so that few rows also keep the GPU busy.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"
#include "drafts/rule_params.h"

/* Set the splits of each of `rows` rows so that about `ctas` CTAs run on each multiprocessor. */
static void split_rows(gumbel_rule_params *p, const cuda_device *cuda, int64_t rows, int ctas)
{
    int64_t range = cuda_range_of(&p->proposal.target);
    int64_t max_splits = cuda_max_splits((int64_t)cuda->multiprocessors * ctas, rows, 1);
    p->split_size = cuda_split_size(range, max_splits, CUDA_MASS_UNIT);
    p->splits = (int32_t)((range + p->split_size - 1) / p->split_size);
    GUMBEL_ASSERT(p->splits >= 1 && p->splits <= max_splits && p->split_size % CUDA_MASS_UNIT == 0);
}

/* Models whose rows are summed: without the draft's if the drafter supplied its log-normalisers. */
static int64_t count_models(const gumbel_proposal *by) { return by->supplied ? 1 : 2; }

/* Parameters of a rule, with arrays in the workspace. */
static gumbel_rule_params carve_params(gumbel_cursor *cursor, const cuda_device *cuda,
                                       const gumbel_verification *v, const gumbel_proposal *by)
{
    const size_t rows = (size_t)v->rows, requests = (size_t)v->draft.requests;
    gumbel_rule_params p = {.verification = *v, .proposal = *by};
    p.inverse_caps[0] = cuda_inverse_cap(&by->target);
    p.inverse_caps[1] = cuda_inverse_cap(&by->draft);
    p.row_counters = gumbel_carve_array(cursor, 2 * rows, 1, sizeof *p.row_counters);
    p.counters = gumbel_carve_array(cursor, requests, 1, sizeof *p.counters);
    split_rows(&p, cuda, count_models(by) * v->rows, CUDA_MASS_CTAS);
    p.masses = gumbel_carve_array(cursor, 2 * rows, (size_t)p.splits, sizeof *p.masses);
    split_rows(&p, cuda, v->draft.requests, CUDA_RESIDUAL_CTAS);
    p.contenders = gumbel_carve_array(cursor, rows, (size_t)p.splits, sizeof *p.contenders);
    p.lists = gumbel_carve_array(cursor, by->dots ? requests : 0, (size_t)p.splits,
                                 CUDA_MASS_THREADS / 32 * sizeof *p.lists);
    return p;
}

size_t cuda_rule_workspace_size(const gumbel_device *device, const gumbel_verification *v,
                                const gumbel_proposal *by)
{
    gumbel_cursor cursor = {0};
    carve_params(&cursor, (const cuda_device *)device, v, by);
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
        gumbel_rule_params p = {.verification = *v, .proposal = *by};
        return cuda_launch_in_context(&job, cuda->expand_rule_drafts, shape, &p);
    }
    gumbel_verification copy = *v;
    return cuda_launch_in_context(&job, cuda->expand_drafts, shape, &copy);
}

/* Queue a kernel over the splits of `rows` rows. */
static gumbel_status launch_splits(const cuda_job *job, CUfunction kernel, gumbel_rule_params *p,
                                   int64_t rows, int ctas, int shared_bytes)
{
    split_rows(p, job->cuda, rows, ctas);
    p->tag = cuda_new_tag(job->cuda);
    if (rows > INT32_MAX / p->splits)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "draft",
                           "the draft has more rows than one call on CUDA supports");
    cuda_shape shape = {rows * p->splits, CUDA_MASS_THREADS, shared_bytes, 1};
    return cuda_launch_in_context(job, kernel, shape, p);
}

/* Sum the masses of rows, decide about each draft, and emit the accepted ones. */
static gumbel_status accept_by_rule(const cuda_job *job, const gumbel_verification *v,
                                    const gumbel_proposal *by)
{
    cuda_device *cuda = job->cuda;
    const int nodes = v->draft.max_nodes * (int)sizeof(gumbel_node);
    gumbel_cursor cursor = {by->workspace, 0};
    gumbel_rule_params p = carve_params(&cursor, cuda, v, by);
    GUMBEL_ASSERT(by->num_best == 0 && by->target_logits.logits.data);
    GUMBEL_ASSERT(by->dots || by->draft_logits.logits.data);
    GUMBEL_FORWARD(launch_splits(job, cuda->sum_draft_masses, &p, count_models(by) * v->rows,
                                 CUDA_MASS_CTAS, CUDA_MASS_BYTES));
    if (v->draft.rule == GUMBEL_RULE_BLOCK)
        GUMBEL_FORWARD(launch_splits(job, cuda->sum_draft_blocks, &p, v->rows, CUDA_MASS_CTAS,
                                     CUDA_MASS_BYTES));
    return launch_splits(job, cuda->accept_rule_drafts, &p, v->draft.requests, CUDA_RESIDUAL_CTAS,
                         CUDA_MASS_BYTES + nodes);
}

gumbel_status cuda_accept_drafts(gumbel_device *device, void *stream, const gumbel_verification *v,
                                 const gumbel_proposal *by, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (by)
        return accept_by_rule(&job, v, by);
    int nodes = v->draft.max_nodes * (int)sizeof(gumbel_node);
    cuda_shape shape = {v->draft.requests, CUDA_DRAFT_THREADS, nodes, 1};
    gumbel_verification copy = *v;
    return cuda_launch_in_context(&job, cuda->accept_drafts, shape, &copy);
}
