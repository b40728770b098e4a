/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry points that draw, and those that merge and finish what parts of a vocabulary found.
 */
#define GUMBEL_EXPERIMENTAL
#include "api/call.h"
#include "core/fail.h"
#include "core/finish.h"
#include "maths/summary.h"
#include "validate/validate.h"

#include <inttypes.h>

/* The common end of both sampling calls. */
static gumbel_status sample(gumbel_device *device, gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, size_t workspace_bytes,
                            gumbel_error *error)
{
    gumbel_output out;
    GUMBEL_FORWARD(gumbel_read_output(&out, output, problem->batch, error));
    problem->request |= gumbel_output_request(&out);
    GUMBEL_FORWARD(gumbel_call_served(device, problem, error));
    problem->with_mass = out.lse || out.logprobs;
    GUMBEL_FORWARD(gumbel_call_workspace(device, problem, 0, workspace, workspace_bytes, error));
    if (problem->batch == 0)
        return GUMBEL_OK;
    return device->backend->sample(device, problem, &out, workspace, error);
}

/* The common end of both partial calls. */
static gumbel_status partial(gumbel_device *device, gumbel_problem *problem,
                             gumbel_summary *summaries, void *workspace, size_t workspace_bytes,
                             gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!summaries && problem->batch > 0, error, "summaries", "summaries is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(summaries, _Alignof(gumbel_summary), "summaries", error));
    GUMBEL_REFUSE_IF(problem->request & GUMBEL_REQUEST_TRUNCATION, error, "sampling.truncation",
                     "a part of the vocabulary cannot know what the whole keeps");
    GUMBEL_FORWARD(gumbel_call_served(device, problem, error));
    problem->with_mass = 1;
    GUMBEL_FORWARD(gumbel_call_workspace(device, problem, GUMBEL_NEED_PART, workspace,
                                         workspace_bytes, error));
    if (problem->batch == 0)
        return GUMBEL_OK;
    return device->backend->partial(device, problem, summaries, workspace, error);
}

gumbel_status gumbel_sample(gumbel_device *device, const gumbel_head *head,
                            const gumbel_sampling *sampling, const gumbel_output *output,
                            void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_call_of_head(&problem, device, head, sampling, error));
    return sample(device, &problem, output, workspace, workspace_bytes, error);
}

gumbel_status gumbel_sample_logits(gumbel_device *device, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, const gumbel_output *output,
                                   void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_call_of_logits(&problem, device, logits, sampling, error));
    return sample(device, &problem, output, workspace, workspace_bytes, error);
}

gumbel_status gumbel_partial(gumbel_device *device, const gumbel_head *head,
                             const gumbel_sampling *sampling, gumbel_summary *summaries,
                             void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_call_of_head(&problem, device, head, sampling, error));
    return partial(device, &problem, summaries, workspace, workspace_bytes, error);
}

gumbel_status gumbel_partial_logits(gumbel_device *device, const gumbel_logits *logits,
                                    const gumbel_sampling *sampling, gumbel_summary *summaries,
                                    void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_call_of_logits(&problem, device, logits, sampling, error));
    return partial(device, &problem, summaries, workspace, workspace_bytes, error);
}

gumbel_status gumbel_multiply(gumbel_device *device, const gumbel_head *head, void *stream,
                              void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .stream = stream};
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_call_of_head(&problem, device, head, &sampling, error));
    GUMBEL_FORWARD(gumbel_call_workspace(device, &problem, GUMBEL_NEED_PRODUCT, workspace,
                                         workspace_bytes, error));
    if (problem.batch == 0)
        return GUMBEL_OK;
    return device->backend->multiply(device, &problem, workspace, error);
}

void gumbel_summary_clear(gumbel_summary *summaries, int64_t count)
{
    gumbel_summaries_clear(summaries, count);
}

void gumbel_merge(gumbel_summary *into, const gumbel_summary *from, int64_t count)
{
    gumbel_summaries_merge(into, from, count);
}

gumbel_status gumbel_finish(const gumbel_summary *summaries, int64_t batch, int32_t num_samples,
                            const gumbel_output *output, gumbel_error *error)
{
    gumbel_output out;
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "batch is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_REFUSE_IF(num_samples < 1 || num_samples > GUMBEL_SAMPLES_MOST, error, "num_samples",
                     "num_samples is %d; it must be in 1..%d", (int)num_samples,
                     GUMBEL_SAMPLES_MOST);
    GUMBEL_REFUSE_IF(!summaries && batch > 0, error, "summaries", "summaries is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(summaries, _Alignof(gumbel_summary), "summaries", error));
    GUMBEL_FORWARD(gumbel_read_output(&out, output, batch, error));
    uint32_t more = gumbel_output_request(&out);
    GUMBEL_REFUSE_IF(more, error, gumbel_request_field((gumbel_request)(more & -more)),
                     "summaries do not tell it");
    gumbel_read_out(summaries, batch, num_samples, &out);
    return GUMBEL_OK;
}
