/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on one row of a tile: transforms, padding, and the parameters of its draw.
 */
#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"
#include "core/fail.h"

cpu_transform cpu_make_transform(const gumbel_problem *p, float inverse_temperature,
                                 const float *bias)
{
    return (cpu_transform){.scale = p->scale,
                           .soft_cap = p->soft_cap,
                           .inverse_cap = p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f,
                           .inverse_temperature = inverse_temperature,
                           .bias = bias};
}

const float *cpu_load_tile_bias(const gumbel_problem *p, const cpu_scratch *scratch,
                                const cpu_kernels *kernels, int64_t token, int low, int high)
{
    int64_t first_row = token + low - p->first_token;
    int size = cpu_get_element_size(p->bias.dtype);
    if (!p->bias.data)
        return NULL;
    GUMBEL_ASSERT(scratch->bias && low < high);
    kernels->transform_logits((const char *)p->bias.data + first_row * size, p->bias.dtype,
                              high - low, &cpu_identity, scratch->bias);
    return scratch->bias;
}

float cpu_find_plain_factor(const cpu_job *job, const cpu_row_tile *tile, float inverse_temperature)
{
    cpu_transform t = cpu_make_transform(job->problem, inverse_temperature, tile->bias);
    if (tile->dtype != GUMBEL_FLOAT32 || tile->bias || t.soft_cap != 0.0f || t.scale <= 0.0f ||
        cpu_has_edits(&job->edits, tile))
        return 0.0f;
    return t.scale == 1.0f ? inverse_temperature : inverse_temperature == 1.0f ? t.scale : 0.0f;
}

void cpu_transform_row_tile(const cpu_job *job, const cpu_row_tile *tile, float inverse_temperature,
                            float *z)
{
    GUMBEL_ASSERT(tile->from && z);
    GUMBEL_ASSERT(inverse_temperature > 0.0f);
    cpu_transform t = cpu_make_transform(job->problem, inverse_temperature, tile->bias);
    cpu_transform_edited_tile(&job->edits, job->device->kernels, tile, &t, z);
}

int cpu_pad_row_tile(const cpu_row_tile *tile, float *z)
{
    int end = (int)cpu_round_up(tile->high, GUMBEL_BLOCK);
    GUMBEL_ASSERT(tile->low >= 0 && tile->low <= tile->high && tile->high <= CPU_TILE_MAX);
    for (int i = 0; i < tile->low; i++)
        z[i] = -INFINITY;
    for (int i = tile->high; i < end; i++)
        z[i] = -INFINITY;
    return end / GUMBEL_BLOCK;
}

cpu_draw cpu_make_draw(const gumbel_problem *p, const gumbel_row *row, int64_t first_draw,
                       int64_t token, int low, int high)
{
    GUMBEL_ASSERT(token % GUMBEL_BLOCK == 0 && low >= 0 && low < high);
    GUMBEL_ASSERT(token + low >= p->first_token && token + high <= p->end_token);
    cpu_draw draw = {.row = row,
                     .num_samples = row->greedy ? 1 : p->sampling.num_samples,
                     .token = (uint32_t)token,
                     .blocks = (high + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK,
                     .factor = 1.0f,
                     .noise_stride = p->sampling.noise_stride,
                     .low = low,
                     .high = high};
    if (p->sampling.noise && !row->greedy)
        draw.noise =
            p->sampling.noise + first_draw * draw.noise_stride + (token + low - p->first_token);
    return draw;
}
