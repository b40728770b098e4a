/* SPDX-License-Identifier: Apache-2.0 */
#include "api/token_ids.h"

#include "core/workspace.h"

/* Elements between the noise of two draws: a multiple of 16 bytes, so that kernels load quads. */
static int64_t get_noise_stride(const gumbel_problem *p) { return (p->vocab + 3) / 4 * 4; }

void gumbel_require_table(const gumbel_device *device, gumbel_problem *p)
{
    if (!p->sampling.token_ids)
        return;
    /* Planning tests whether these pointers are NULL, and reads neither. */
    p->sampling.noise = (const float *)p->sampling.token_ids;
    p->sampling.noise_stride = get_noise_stride(p);
    if (device->backend->host_memory)
        return;
    p->features |= GUMBEL_FEATURE_MASK;
    p->transforms.mask = (gumbel_row_i32){p->sampling.token_ids, 0};
}

/* Carves the arrays of a table; *mask is NULL if the call has no mask. */
static float *carve_table(gumbel_cursor *cursor, const gumbel_problem *p, uint32_t **mask)
{
    const size_t samples = (size_t)p->sampling.num_samples, words = ((size_t)p->vocab + 31) / 32;
    size_t draws;
    if (__builtin_mul_overflow((size_t)p->batch, samples, &draws))
        draws = SIZE_MAX;
    *mask = NULL;
    if (p->features & GUMBEL_FEATURE_MASK)
        *mask = gumbel_carve_array(cursor, words, 1, sizeof **mask);
    return gumbel_carve_array(cursor, draws, (size_t)get_noise_stride(p), sizeof(float));
}

void gumbel_add_table_bytes(const gumbel_problem *p, size_t *bytes)
{
    gumbel_cursor cursor = {NULL, 0};
    uint32_t *mask;
    if (!p->sampling.token_ids)
        return;
    carve_table(&cursor, p, &mask);
    if (__builtin_add_overflow(cursor.used, *bytes, bytes))
        *bytes = SIZE_MAX;
}

void gumbel_add_table_bytes_max(const gumbel_limits *limits, size_t *bytes)
{
    static const int32_t table; /* not read */
    const gumbel_problem p = {
        .batch = limits->batch,
        .vocab = limits->vocab_size,
        .features = GUMBEL_FEATURE_MASK,
        .sampling = {.num_samples = limits->num_samples, .token_ids = &table}};
    gumbel_add_table_bytes(&p, bytes);
}

gumbel_status gumbel_prepare_token_ids(gumbel_device *device, gumbel_problem *p, int64_t rows,
                                       void **workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {*workspace, 0};
    uint32_t *mask;
    if (!p->sampling.token_ids || rows == 0)
        return GUMBEL_OK;
    float *noise = carve_table(&cursor, p, &mask);
    p->sampling.noise = noise;
    if (mask)
        p->transforms.mask.data = (const int32_t *)mask;
    *workspace = cursor.base + cursor.used;
    const gumbel_problem live = gumbel_problem_slice(p, 0, rows);
    return device->backend->store_table_noise(device, &live, noise, p->sampling.noise_stride, mask,
                                              error);
}

gumbel_status gumbel_map_token_ids(gumbel_device *device, const gumbel_problem *p, int64_t rows,
                                   const gumbel_output *output, gumbel_error *error)
{
    if (!p->sampling.token_ids || rows == 0)
        return GUMBEL_OK;
    const gumbel_problem live = gumbel_problem_slice(p, 0, rows);
    return device->backend->map_token_ids(device, &live, output, error);
}
