/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry points that draw, and those that merge summaries of parts of a vocabulary.
 */
#include "api/call.h"
#include "api/token_ids.h"
#include "core/fail.h"
#include "core/output.h"
#include "maths/summary.h"
#include "validate/validate.h"
#include "validate/validate_token_ids.h"

#include <inttypes.h>

/* GPU kernels load a summary in units of 16 bytes. */
#define GPU_SUMMARY_ALIGNMENT 16

/* Rows below live_rows if the host can read that, else all. */
static int64_t count_known_rows(const gumbel_device *device, const gumbel_problem *problem)
{
    const int32_t *live_rows = problem->sampling.live_rows;
    return device->backend->host_memory && live_rows ? *live_rows : problem->batch;
}

/* Plans and runs either sampling call. */
static gumbel_status sample_problem(gumbel_device *device, gumbel_problem *problem,
                                    const gumbel_output *output, void *workspace,
                                    size_t workspace_bytes, gumbel_error *error)
{
    gumbel_output out;
    gumbel_plan plan;
    GUMBEL_FORWARD(gumbel_read_output(&out, output, problem->batch, error));
    gumbel_problem_request(problem, &out);
    GUMBEL_FORWARD(gumbel_settle_features(device, problem, error));
    GUMBEL_FORWARD(
        gumbel_plan_in_workspace(device, problem, 0, workspace, workspace_bytes, &plan, error));
    int64_t rows = count_known_rows(device, problem);
    GUMBEL_ASSERT(rows >= 0 && rows <= problem->batch);
    GUMBEL_FORWARD(gumbel_prepare_token_ids(device, problem, rows, &workspace, error));
    GUMBEL_FORWARD(gumbel_draw_rows(device, problem, &plan, rows, &out, workspace, error));
    GUMBEL_FORWARD(gumbel_map_token_ids(device, problem, rows, &out, error));
    if (rows < problem->batch)
        gumbel_output_fill_unused(&out, rows, problem->batch, problem->sampling.num_samples);
    return GUMBEL_OK;
}

/* Plans and runs either partial call. */
static gumbel_status draw_partial_problem(gumbel_device *device, gumbel_problem *problem,
                                          gumbel_summary *summaries, void *workspace,
                                          size_t workspace_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    GUMBEL_REFUSE_IF(!summaries && problem->batch > 0, error, "summaries", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(summaries, _Alignof(gumbel_summary), "summaries", error));
    GUMBEL_FORWARD(gumbel_refuse_token_ids(
        &problem->sampling, "summaries hold ids of one range of the vocabulary", error));
    const uint32_t truncates = GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PROGRAM;
    GUMBEL_REFUSE_IF(problem->features & truncates, error, "sampling.truncation",
                     "is not supported: a shard does not determine the kept set");
    GUMBEL_REFUSE_IF(problem->features & GUMBEL_FEATURE_GIVEN, error, "sampling.given",
                     "given tokens are not supported for a summary of a shard");
    GUMBEL_FORWARD(gumbel_settle_features(device, problem, error));
    problem->with_mass = 1;
    GUMBEL_FORWARD(gumbel_plan_in_workspace(device, problem, GUMBEL_CAPABILITY_SUMMARIES, workspace,
                                            workspace_bytes, &plan, error));
    int64_t rows = count_known_rows(device, problem), samples = problem->sampling.num_samples;
    GUMBEL_ASSERT(rows >= 0 && rows <= problem->batch);
    GUMBEL_ASSERT(!(problem->features & ~(uint32_t)GUMBEL_FEATURE_TRANSFORMS));
    for (int64_t i = rows * samples; i < problem->batch * samples; i++) {
        gumbel_summary_empty(&summaries[i]);
        summaries[i].flags = GUMBEL_FLAG_UNUSED;
    }
    gumbel_problem live = gumbel_problem_slice(problem, 0, rows);
    if (rows == 0)
        return GUMBEL_OK;
    return device->backend->draw_partial(device, &live, rows == problem->batch ? &plan : NULL,
                                         summaries, workspace, error);
}

gumbel_status gumbel_sample(gumbel_device *device, void *stream, const gumbel_head *head,
                            const gumbel_sampling *sampling, const gumbel_output *output,
                            void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_head(&problem, device, stream, head, sampling, error));
    return sample_problem(device, &problem, output, workspace, workspace_bytes, error);
}

gumbel_status gumbel_sample_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, const gumbel_output *output,
                                   void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return sample_problem(device, &problem, output, workspace, workspace_bytes, error);
}

gumbel_status gumbel_partial(gumbel_device *device, void *stream, const gumbel_head *head,
                             const gumbel_sampling *sampling, gumbel_summary *summaries,
                             void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_head(&problem, device, stream, head, sampling, error));
    return draw_partial_problem(device, &problem, summaries, workspace, workspace_bytes, error);
}

gumbel_status gumbel_partial_logits(gumbel_device *device, void *stream,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    gumbel_summary *summaries, void *workspace,
                                    size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return draw_partial_problem(device, &problem, summaries, workspace, workspace_bytes, error);
}

gumbel_status gumbel_multiply(gumbel_device *device, void *stream, const gumbel_head *head,
                              void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    gumbel_plan plan;
    GUMBEL_FORWARD(gumbel_read_call_of_head(&problem, device, stream, head, NULL, error));
    GUMBEL_FORWARD(gumbel_plan_in_workspace(device, &problem, GUMBEL_CAPABILITY_PRODUCT, workspace,
                                            workspace_bytes, &plan, error));
    if (problem.batch == 0)
        return GUMBEL_OK;
    return device->backend->multiply(device, &problem, &plan, workspace, error);
}

void gumbel_summary_clear(gumbel_summary *summaries, int64_t count)
{
    gumbel_summaries_clear(summaries, count);
}

/* Checks summaries that a call merges or finishes. */
static gumbel_status check_summaries(const gumbel_device *device, const gumbel_summary *summaries,
                                     int64_t count, const char *name, gumbel_error *error)
{
    size_t alignment =
        !device || device->backend->host_memory ? _Alignof(gumbel_summary) : GPU_SUMMARY_ALIGNMENT;
    GUMBEL_REFUSE_IF(!summaries && count > 0, error, name, "is NULL");
    return gumbel_check_aligned(summaries, alignment, name, error);
}

gumbel_status gumbel_merge(gumbel_device *device, void *stream, gumbel_summary *into,
                           const gumbel_summary *from, int64_t count, gumbel_error *error)
{
    int host = !device || device->backend->host_memory;
    GUMBEL_REFUSE_IF(count < 0 || count > GUMBEL_SIZE_END, error, "count",
                     "is %" PRId64 "; it must be in 0..2^40", count);
    GUMBEL_FORWARD(check_summaries(device, into, count, "into", error));
    GUMBEL_FORWARD(check_summaries(device, from, count, "from", error));
    if (host) {
        GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
        gumbel_summaries_merge(into, from, count);
        return GUMBEL_OK;
    }
    gumbel_finish_call call = {
        .summaries = from, .parts = 1, .batch = count, .num_samples = 1, .merged = into};
    return count == 0 ? GUMBEL_OK : device->backend->finish(device, stream, &call, error);
}

gumbel_status gumbel_finish(gumbel_device *device, void *stream, const gumbel_summary *summaries,
                            int32_t parts, int64_t batch, int32_t num_samples,
                            const gumbel_output *output, gumbel_error *error)
{
    gumbel_output out;
    GUMBEL_REFUSE_IF(parts < 1 || parts > GUMBEL_PARTS_MAX, error, "parts",
                     "is %d; it must be in 1..%d", (int)parts, GUMBEL_PARTS_MAX);
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_REFUSE_IF(num_samples < 1 || num_samples > GUMBEL_SAMPLES_MAX, error, "num_samples",
                     "is %d; it must be in 1..%d", (int)num_samples, GUMBEL_SAMPLES_MAX);
    int64_t bytes;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(batch * num_samples, parts, &bytes) ||
                         __builtin_mul_overflow(bytes, (int64_t)sizeof *summaries, &bytes),
                     error, "batch", "[%d, %" PRId64 ", %d] summaries are larger than any memory",
                     (int)parts, batch, (int)num_samples);
    GUMBEL_FORWARD(check_summaries(device, summaries, batch, "summaries", error));
    GUMBEL_FORWARD(gumbel_read_output(&out, output, batch, error));
    uint32_t request = gumbel_output_features(&out);
    GUMBEL_REFUSE_IF(request, error, gumbel_feature_field((gumbel_feature)(request & -request)),
                     "summaries do not determine it");
    gumbel_finish_call call = {.summaries = summaries,
                               .parts = parts,
                               .batch = batch,
                               .num_samples = num_samples,
                               .output = &out};
    if (device && !device->backend->host_memory)
        return batch == 0 ? GUMBEL_OK : device->backend->finish(device, stream, &call, error);
    GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    gumbel_write_outputs(&call);
    return GUMBEL_OK;
}
