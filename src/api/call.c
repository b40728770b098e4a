/* SPDX-License-Identifier: Apache-2.0
 *
 * What all calls begin with, what they take, and what would serve them.
 */
#include "api/call.h"

#include "core/fail.h"
#include "core/output.h"
#include "validate/validate.h"

#include <inttypes.h>

gumbel_status gumbel_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                  void *stream, const gumbel_head *head,
                                  const gumbel_sampling *sampling, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(
        gumbel_read_head(problem, device->backend->screen_layout, head, sampling, error));
    problem->stream = stream;
    if (!device->backend->host_memory)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_check_host_screen(problem, device->backend->screen_layout, error));
    return gumbel_check_host_sampling(problem, error);
}

gumbel_status gumbel_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                    void *stream, const gumbel_logits *logits,
                                    const gumbel_sampling *sampling, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(problem, logits, sampling, error));
    problem->stream = stream;
    return device->backend->host_memory ? gumbel_check_host_sampling(problem, error) : GUMBEL_OK;
}

gumbel_status gumbel_call_served(const gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error)
{
    uint32_t missing = problem->request & ~device->backend->serves;
    int best = (problem->request & GUMBEL_REQUEST_BEST) != 0;
    GUMBEL_REFUSE_IF(best && problem->sampling.num_samples != 1, error, "output.num_best",
                     "the best scores are those of one draw, and num_samples is %d",
                     (int)problem->sampling.num_samples);
    GUMBEL_REFUSE_IF(best && problem->request & GUMBEL_REQUEST_GIVEN, error, "output.num_best",
                     "given tokens are not drawn");
    if (missing == 0)
        return GUMBEL_OK;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED,
                       gumbel_request_field((gumbel_request)(missing & -missing)),
                       "it is not supported on this device");
}

/* The limits in full length, with num_samples filled in. */
static gumbel_status read_limits(gumbel_limits *into, const gumbel_limits *limits,
                                 gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!limits, error, "limits", "limits is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, limits, "limits", error));
    if (into->num_samples == 0)
        into->num_samples = 1;
    GUMBEL_REFUSE_IF(into->batch < 0 || into->batch > GUMBEL_SIZE_END, error, "limits.batch",
                     "batch is %" PRId64 "; it must be in 0..2^40", into->batch);
    GUMBEL_REFUSE_IF(into->hidden_size < 0 || into->hidden_size > GUMBEL_SIZE_END, error,
                     "limits.hidden_size", "hidden_size is %" PRId64 "; it must be in 0..2^40",
                     into->hidden_size);
    GUMBEL_REFUSE_IF(into->num_samples < 1 || into->num_samples > GUMBEL_SAMPLES_MOST, error,
                     "limits.num_samples", "num_samples is %d; it must be in 1..%d",
                     (int)into->num_samples, GUMBEL_SAMPLES_MOST);
    GUMBEL_REFUSE_IF(into->requests < 0 || into->requests > 1, error, "limits.requests",
                     "requests is %d; it must be 0 or 1", (int)into->requests);
    GUMBEL_REFUSE_IF(into->screens < 0 || into->screens > 1, error, "limits.screens",
                     "screens is %d; it must be 0 or 1", (int)into->screens);
    GUMBEL_REFUSE_IF(into->reserved, error, "limits.reserved", "it is not 0");
    GUMBEL_REFUSE_IF(into->vocab_size < into->requests || into->vocab_size > INT64_C(1) << 31,
                     error, "limits.vocab_size",
                     "vocab_size is %" PRId64 "; it must be in 1..2^31, or 0 without requests",
                     into->vocab_size);
    return GUMBEL_OK;
}

gumbel_status gumbel_workspace_most(const gumbel_device *device, const gumbel_limits *limits,
                                    size_t *bytes, gumbel_error *error)
{
    gumbel_limits full;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_FORWARD(read_limits(&full, limits, error));
    size_t size = full.batch == 0 ? 0 : device->backend->most(device, &full);
    GUMBEL_REFUSE_IF(size == SIZE_MAX, error, "limits.batch",
                     "a batch of %" PRId64 " is larger than any memory", full.batch);
    *bytes = size;
    return GUMBEL_OK;
}

gumbel_status gumbel_call_size(const gumbel_device *device, const gumbel_problem *problem,
                               uint32_t more, size_t *bytes, gumbel_error *error)
{
    *bytes = 0;
    if (problem->batch == 0)
        return GUMBEL_OK;
    gumbel_problem slice = gumbel_problem_slice(problem, 0, gumbel_slice_most(problem));
    GUMBEL_FORWARD(device->backend->call_size(device, &slice, more, bytes, error));
    GUMBEL_REFUSE_IF(*bytes == SIZE_MAX, error, "batch",
                     "a batch of %" PRId64 " is larger than any memory", problem->batch);
    return GUMBEL_OK;
}

/* The most that any call on `problem` takes: a draw, with masses or without, a part, or rows. */
static gumbel_status size_of_any_call(const gumbel_device *device, const gumbel_problem *problem,
                                      size_t *bytes, gumbel_error *error)
{
    const struct {
        uint32_t more;
        int with_mass, can_be;
    } purposes[] = {
        {0, 0, 1},
        {0, 1, 1},
        {GUMBEL_NEED_PART, 1,
         !(problem->request & (GUMBEL_REQUEST_TRUNCATION | GUMBEL_REQUEST_GIVEN))},
        {GUMBEL_NEED_ROWS, 0, problem->hidden_size == 0},
    };
    gumbel_problem call = *problem;
    *bytes = 0;
    for (int i = 0; i < 4; i++)
        if (purposes[i].can_be) {
            size_t own;
            call.with_mass = purposes[i].with_mass;
            if (purposes[i].more == GUMBEL_NEED_ROWS)
                call.request &= ~(uint32_t)GUMBEL_REQUEST_GIVEN;
            GUMBEL_FORWARD(gumbel_call_size(device, &call, purposes[i].more, &own, error));
            *bytes = own > *bytes ? own : *bytes;
        }
    return GUMBEL_OK;
}

/* The problem of a call that is told rather than made. */
static gumbel_status read_call(gumbel_problem *problem, const gumbel_device *device,
                               const gumbel_head *head, const gumbel_logits *logits,
                               const gumbel_sampling *sampling, const gumbel_output *output,
                               gumbel_error *error)
{
    gumbel_output out;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(
        head ? gumbel_read_head(problem, device->backend->screen_layout, head, sampling, error)
             : gumbel_read_logits(problem, logits, sampling, error));
    if (output) {
        GUMBEL_FORWARD(gumbel_read_output(&out, output, 0, error));
        problem->request |= gumbel_output_request(&out);
        problem->with_mass = out.lse || out.logprobs;
    }
    return gumbel_call_served(device, problem, error);
}

gumbel_status gumbel_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    const gumbel_output *output, size_t *bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_FORWARD(read_call(&problem, device, head, logits, sampling, output, error));
    return output ? gumbel_call_size(device, &problem, 0, bytes, error)
                  : size_of_any_call(device, &problem, bytes, error);
}

gumbel_status gumbel_explain(const gumbel_device *device, const gumbel_head *head,
                             const gumbel_logits *logits, const gumbel_sampling *sampling,
                             const gumbel_output *output, char *text, size_t size,
                             gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!text && size > 0, error, "text", "text is NULL");
    GUMBEL_FORWARD(read_call(&problem, device, head, logits, sampling, output, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_sampling(&problem, error));
    gumbel_text into = {text, size, 0};
    if (size > 0)
        text[0] = '\0';
    GUMBEL_FORWARD(device->backend->explain(device, &problem, &into, error));
    if (problem.screen && !device->backend->screen_prepare)
        gumbel_text_add(&into, "screen: left alone, as this device draws without\n");
    return GUMBEL_OK;
}

gumbel_status gumbel_call_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                    uint32_t more, const void *workspace, size_t given,
                                    gumbel_error *error)
{
    size_t needed;
    GUMBEL_FORWARD(gumbel_call_size(device, problem, more, &needed, error));
    return gumbel_check_workspace(
        workspace, given, needed,
        "gumbel_workspace_size(), or gumbel_workspace_most() (limits.requests = 1 for transforms, "
        "truncation and row outputs)",
        error);
}
