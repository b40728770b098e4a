/* SPDX-License-Identifier: Apache-2.0 */
#include "maths/noise.h"

#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

gumbel_status gumbel_philox4x32(const uint32_t counter[4], const uint32_t key[2], int rounds,
                                uint32_t out[4])
{
    uintptr_t places = (uintptr_t)counter | (uintptr_t)key | (uintptr_t)out;
    if (!counter || !key || !out || places % sizeof *out != 0 || rounds < 0 || rounds > 16)
        return GUMBEL_ERROR_ARGUMENT;
    uint32_t block[4];
    memcpy(block, counter, sizeof block);
    gumbel_philox_block(block, key[0], key[1], rounds);
    memcpy(out, block, sizeof block);
    return GUMBEL_OK;
}

uint64_t gumbel_row_seed(uint64_t seed, uint64_t row) { return gumbel_mix_seed(seed, row); }

gumbel_status gumbel_noise(uint64_t seed, uint64_t position, uint32_t sample, uint32_t domain,
                           int64_t first_token, int64_t count, float *out, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(domain >= GUMBEL_BLOCK_DOMAIN, error, "domain",
                     "is %#x; it must be below 2^31", (unsigned)domain);
    GUMBEL_REFUSE_IF(first_token < 0 || count < 0 || first_token > (INT64_C(1) << 31) ||
                         count > (INT64_C(1) << 31) - first_token,
                     error, "first_token",
                     "tokens %" PRId64 " .. + %" PRId64 " do not fit in 0..2^31", first_token,
                     count);
    GUMBEL_REFUSE_IF(!out && count > 0, error, "out", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(out, sizeof *out, "out", error));
    gumbel_stream stream = gumbel_stream_at(seed, position, sample, domain);
    gumbel_fill_noise(stream, (uint32_t)first_token, count, out);
    return GUMBEL_OK;
}

gumbel_status gumbel_prepare_noise(gumbel_device *device, void *stream,
                                   const gumbel_sampling *sampling, int64_t batch,
                                   int64_t first_token, int64_t count, float *noise,
                                   int64_t noise_stride, gumbel_error *error)
{
    gumbel_problem problem;
    int64_t stride = noise_stride == 0 ? count : noise_stride, elements;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(gumbel_read_noise(&problem, sampling, batch, first_token, count, error));
    problem.stream = stream;
    GUMBEL_REFUSE_IF(stride < count, error, "noise_stride",
                     "is %" PRId64 "; it must be at least %" PRId64 ", the number of tokens",
                     stride, count);
    GUMBEL_REFUSE_IF(
        __builtin_mul_overflow(batch * problem.sampling.num_samples, stride, &elements) ||
            elements > INT64_MAX / (int64_t)sizeof(float),
        error, "noise_stride",
        "noise [%" PRId64 ", %d] with stride %" PRId64 " is larger than any memory", batch,
        (int)problem.sampling.num_samples, stride);
    GUMBEL_REFUSE_IF(!noise && batch > 0 && count > 0, error, "noise", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(noise, sizeof *noise, "noise", error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_sampling(&problem, error));
    if (batch == 0 || count == 0)
        return GUMBEL_OK;
    const int32_t *live_rows = problem.sampling.live_rows;
    if (device->backend->host_memory && live_rows)
        problem.batch = *live_rows;
    if (problem.batch == 0)
        return GUMBEL_OK;
    return problem.sampling.token_ids
               ? device->backend->store_table_noise(device, &problem, noise, stride, NULL, error)
               : device->backend->store_noise(device, &problem, noise, stride, error);
}
