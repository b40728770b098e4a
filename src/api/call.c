/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps that all calls begin with (validation, planning), workspace sizes, and explanations.
 */
#include "api/call.h"
#include "api/token_ids.h"

#include "gumbel/drafts.h"

#include "core/fail.h"
#include "core/output.h"
#include "validate/validate.h"
#include "validate/validate_programs.h"

#include <inttypes.h>

gumbel_status gumbel_read_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                       void *stream, const gumbel_head *head,
                                       const gumbel_sampling *sampling, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(
        gumbel_read_head(problem, device->backend->screen_layout, head, sampling, error));
    problem->stream = stream;
    if (!device->backend->host_memory)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_screen(problem, device->backend->screen_layout, error));
    return gumbel_check_host_sampling(problem, error);
}

gumbel_status gumbel_read_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                         void *stream, const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(problem, logits, sampling, error));
    problem->stream = stream;
    return device->backend->host_memory ? gumbel_check_host_sampling(problem, error) : GUMBEL_OK;
}

gumbel_status gumbel_settle_features(const gumbel_device *device, gumbel_problem *problem,
                                     gumbel_error *error)
{
    gumbel_lower_program(problem);
    gumbel_require_table(device, problem);
    uint32_t missing = problem->features & ~device->backend->supports;
    int best = (problem->features & GUMBEL_FEATURE_BEST) != 0;
    GUMBEL_REFUSE_IF(best && problem->sampling.num_samples != 1, error, "output.num_best",
                     "num_samples is %d; best scores are supported for num_samples = 1 only",
                     (int)problem->sampling.num_samples);
    GUMBEL_REFUSE_IF(best && problem->features & GUMBEL_FEATURE_GIVEN, error, "output.num_best",
                     "best scores are not supported with given tokens");
    if (missing == 0)
        return GUMBEL_OK;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED,
                       gumbel_feature_field((gumbel_feature)(missing & -missing)),
                       "this device does not support the field");
}

/* Reads and checks limits; num_samples = 0 becomes 1. */
static gumbel_status read_limits(gumbel_limits *into, const gumbel_limits *limits,
                                 gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!limits, error, "limits", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, limits, "limits", error));
    if (into->num_samples == 0)
        into->num_samples = 1;
    GUMBEL_REFUSE_IF(into->batch < 0 || into->batch > GUMBEL_SIZE_END, error, "limits.batch",
                     "is %" PRId64 "; it must be in 0..2^40", into->batch);
    GUMBEL_REFUSE_IF(into->hidden_size < 0 || into->hidden_size > GUMBEL_SIZE_END, error,
                     "limits.hidden_size", "is %" PRId64 "; it must be in 0..2^40",
                     into->hidden_size);
    GUMBEL_REFUSE_IF(into->num_samples < 1 || into->num_samples > GUMBEL_SAMPLES_MAX, error,
                     "limits.num_samples", "is %d; it must be in 1..%d", (int)into->num_samples,
                     GUMBEL_SAMPLES_MAX);
    GUMBEL_REFUSE_IF(into->requests < 0 || into->requests > 1, error, "limits.requests",
                     "is %d; it must be 0 or 1", (int)into->requests);
    GUMBEL_REFUSE_IF(into->screens < 0 || into->screens > 1, error, "limits.screens",
                     "is %d; it must be 0 or 1", (int)into->screens);
    GUMBEL_REFUSE_IF(into->token_ids < 0 || into->token_ids > into->requests, error,
                     "limits.token_ids", "is %d; it must be 0 or 1, and 0 without requests",
                     (int)into->token_ids);
    GUMBEL_REFUSE_IF(into->reserved, error, "limits.reserved", "is not 0");
    GUMBEL_REFUSE_IF(into->max_nodes < 0 || into->max_nodes > GUMBEL_NODES_MAX, error,
                     "limits.max_nodes", "is %d; it must be in 0..%d", (int)into->max_nodes,
                     GUMBEL_NODES_MAX);
    GUMBEL_REFUSE_IF(into->vocab_size < into->requests || into->vocab_size > INT64_C(1) << 31,
                     error, "limits.vocab_size",
                     "is %" PRId64 "; it must be in 1..2^31, or 0 without requests",
                     into->vocab_size);
    return GUMBEL_OK;
}

gumbel_status gumbel_workspace_most(const gumbel_device *device, const gumbel_limits *limits,
                                    size_t *bytes, gumbel_error *error)
{
    gumbel_limits full;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    GUMBEL_FORWARD(read_limits(&full, limits, error));
    size_t size = full.batch == 0 ? 0 : device->backend->max_workspace_size(device, &full);
    size_t more = full.max_nodes ? gumbel_verification_size_max(full.batch, full.max_nodes) : 0;
    if (full.token_ids && full.batch > 0)
        gumbel_add_table_bytes_max(&full, &size);
    GUMBEL_REFUSE_IF(__builtin_add_overflow(size, more, &size) || size == SIZE_MAX, error,
                     "limits.batch", "a batch of %" PRId64 " is larger than any memory",
                     full.batch);
    *bytes = size;
    return GUMBEL_OK;
}

gumbel_status gumbel_plan_call(const gumbel_device *device, const gumbel_problem *problem,
                               uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    *plan = (gumbel_plan){0};
    if (problem->batch == 0)
        return GUMBEL_OK;
    gumbel_problem slice = gumbel_problem_slice(problem, 0, gumbel_slice_rows_max(problem));
    GUMBEL_FORWARD(device->backend->plan(device, &slice, purpose, plan, error));
    gumbel_add_table_bytes(problem, &plan->workspace_bytes);
    GUMBEL_REFUSE_IF(plan->workspace_bytes == SIZE_MAX, error, "batch",
                     "a batch of %" PRId64 " is larger than any memory", problem->batch);
    return GUMBEL_OK;
}

/* Raises *bytes to the largest workspace of all calls on `problem`: a draw with or without masses,
 * summaries of a shard, processed rows. */
static gumbel_status raise_to_calls(const gumbel_device *device, const gumbel_problem *problem,
                                    size_t *bytes, gumbel_error *error)
{
    const int has_table = problem->sampling.token_ids != NULL;
    const struct {
        uint64_t purpose;
        int with_mass, is_valid;
    } purposes[] = {
        {0, 0, 1},
        {0, 1, 1},
        {GUMBEL_CAPABILITY_SUMMARIES, 1,
         !has_table && !(problem->features & (GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PROGRAM |
                                              GUMBEL_FEATURE_GIVEN))},
        {GUMBEL_CAPABILITY_ROWS, 0, !has_table && problem->hidden_size == 0},
    };
    gumbel_problem call = *problem;
    for (int i = 0; i < 4; i++)
        if (purposes[i].is_valid) {
            gumbel_plan plan;
            call.with_mass = purposes[i].with_mass;
            if (purposes[i].purpose == GUMBEL_CAPABILITY_ROWS)
                call.features &= ~(uint32_t)GUMBEL_FEATURE_GIVEN;
            GUMBEL_FORWARD(gumbel_plan_call(device, &call, purposes[i].purpose, &plan, error));
            *bytes = plan.workspace_bytes > *bytes ? plan.workspace_bytes : *bytes;
        }
    return GUMBEL_OK;
}

/* The largest workspace of all calls on `problem`, by an order of truncation and by programs. */
static gumbel_status find_max_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                        size_t *bytes, gumbel_error *error)
{
    gumbel_problem call = *problem, lowered = *problem;
    *bytes = 0;
    GUMBEL_FORWARD(gumbel_settle_features(device, &lowered, error));
    GUMBEL_FORWARD(raise_to_calls(device, &lowered, bytes, error));
    gumbel_require_table(device, &call);
    if (lowered.features == call.features || call.features & ~device->backend->supports)
        return GUMBEL_OK;
    return raise_to_calls(device, &call, bytes, error);
}

/* Validates a call of which only the workspace size or the explanation is requested. */
static gumbel_status read_call(gumbel_problem *problem, const gumbel_device *device,
                               const gumbel_head *head, const gumbel_logits *logits,
                               const gumbel_sampling *sampling, const gumbel_output *output,
                               gumbel_error *error)
{
    gumbel_output out;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "set either head or logits, and not both");
    GUMBEL_FORWARD(
        head ? gumbel_read_head(problem, device->backend->screen_layout, head, sampling, error)
             : gumbel_read_logits(problem, logits, sampling, error));
    if (!output)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_output(&out, output, 0, error));
    gumbel_problem_request(problem, &out);
    return gumbel_settle_features(device, problem, error);
}

gumbel_status gumbel_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    const gumbel_output *output, size_t *bytes, gumbel_error *error)
{
    gumbel_problem problem;
    gumbel_plan plan;
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    GUMBEL_FORWARD(read_call(&problem, device, head, logits, sampling, output, error));
    if (!output)
        return find_max_workspace(device, &problem, bytes, error);
    GUMBEL_FORWARD(gumbel_plan_call(device, &problem, 0, &plan, error));
    *bytes = plan.workspace_bytes;
    return GUMBEL_OK;
}

gumbel_status gumbel_explain(const gumbel_device *device, const gumbel_head *head,
                             const gumbel_logits *logits, const gumbel_sampling *sampling,
                             const gumbel_output *output, char *text, size_t size,
                             gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!text && size > 0, error, "text", "is NULL");
    GUMBEL_FORWARD(read_call(&problem, device, head, logits, sampling, output, error));
    GUMBEL_FORWARD(gumbel_settle_features(device, &problem, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_sampling(&problem, error));
    gumbel_text into = {text, size, 0};
    if (size > 0)
        text[0] = '\0';
    GUMBEL_FORWARD(device->backend->explain(device, &problem, &into, error));
    if (problem.sampling.token_ids) {
        size_t bytes = 0;
        gumbel_add_table_bytes(&problem, &bytes);
        gumbel_text_add(&into, "token_ids: %zu bytes more, for the noise of the table\n", bytes);
    }
    if (problem.screen && !device->backend->screen_prepare)
        gumbel_text_add(&into, "screen: not used, as the device does not support screens\n");
    return GUMBEL_OK;
}

gumbel_status gumbel_plan_in_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                       uint64_t purpose, const void *workspace, size_t given,
                                       gumbel_plan *plan, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_plan_call(device, problem, purpose, plan, error));
    return gumbel_check_workspace(
        workspace, given, plan->workspace_bytes,
        "gumbel_workspace_size(), or gumbel_workspace_most() (limits.requests = 1 for transforms, "
        "truncation and row outputs)",
        error);
}
