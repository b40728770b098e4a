/* SPDX-License-Identifier: Apache-2.0 */
#include "api/call.h"

#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

gumbel_status gumbel_call_of_head(gumbel_problem *problem, const gumbel_device *device,
                                  const gumbel_head *head, const gumbel_sampling *sampling,
                                  gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_head(problem, head, sampling, error));
    return device->backend->sample ? GUMBEL_OK : gumbel_check_host_sampling(problem, error);
}

gumbel_status gumbel_call_of_logits(gumbel_problem *problem, const gumbel_device *device,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(problem, logits, sampling, error));
    return device->backend->sample ? GUMBEL_OK : gumbel_check_host_sampling(problem, error);
}

gumbel_status gumbel_call_served(const gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error)
{
    uint32_t missing = problem->request & ~device->backend->serves;
    if (missing == 0)
        return GUMBEL_OK;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED,
                       gumbel_request_field((gumbel_request)(missing & -missing)),
                       "it is not to be had on this device");
}

gumbel_summary *gumbel_call_summaries(gumbel_cursor *cursor, const gumbel_device *device,
                                      int64_t batch, int32_t num_samples)
{
    size_t rows = device->backend->sample ? 0 : (size_t)batch;
    return gumbel_carve(cursor, rows, (size_t)num_samples, sizeof(gumbel_summary));
}

gumbel_status gumbel_workspace_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                                    int32_t num_samples, size_t *bytes, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "batch is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_REFUSE_IF(hidden_size < 0 || hidden_size > GUMBEL_SIZE_END, error, "hidden_size",
                     "hidden_size is %" PRId64 "; it must be in 0..2^40", hidden_size);
    GUMBEL_REFUSE_IF(num_samples < 1 || num_samples > 65536, error, "num_samples",
                     "num_samples is %d; it must be in 1..65536", (int)num_samples);
    gumbel_cursor cursor = {0};
    gumbel_call_summaries(&cursor, device, batch, num_samples);
    size_t own = device->backend->workspace_size(device, batch, hidden_size, num_samples), total;
    GUMBEL_REFUSE_IF(cursor.used == SIZE_MAX || own == SIZE_MAX ||
                         __builtin_add_overflow(cursor.used, own, &total),
                     error, "batch", "a batch of %" PRId64 " is larger than any memory", batch);
    *bytes = batch == 0 ? 0 : total;
    return GUMBEL_OK;
}

gumbel_status gumbel_call_size(const gumbel_device *device, const gumbel_problem *problem,
                               size_t *bytes, gumbel_error *error)
{
    size_t plain, more = 0;
    GUMBEL_FORWARD(gumbel_workspace_size(device, problem->batch, problem->hidden_size,
                                         problem->sampling.num_samples, &plain, error));
    if (problem->request != 0 && problem->batch > 0 && device->backend->request_size)
        more = device->backend->request_size(device, problem);
    GUMBEL_REFUSE_IF(more == SIZE_MAX || __builtin_add_overflow(plain, more, bytes), error, "batch",
                     "a batch of %" PRId64 " is larger than any memory", problem->batch);
    return GUMBEL_OK;
}

gumbel_status gumbel_call_workspace(const gumbel_device *device, const gumbel_problem *problem,
                                    const void *workspace, size_t given, gumbel_error *error)
{
    size_t needed = 0;
    GUMBEL_FORWARD(gumbel_call_size(device, problem, &needed, error));
    if (given < needed)
        return gumbel_fail(error, GUMBEL_ERROR_WORKSPACE, "workspace_bytes",
                           "%zu bytes were given, %zu are needed", given, needed);
    if (needed > 0 && (!workspace || (uintptr_t)workspace % GUMBEL_WORKSPACE_ALIGNMENT != 0))
        return gumbel_fail(error, GUMBEL_ERROR_WORKSPACE, "workspace",
                           workspace ? "it is not aligned to %d bytes"
                                     : "it is NULL, not %d-byte aligned memory",
                           GUMBEL_WORKSPACE_ALIGNMENT);
    return GUMBEL_OK;
}
