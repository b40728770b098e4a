/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece of a row: what is done to its logits, whether it is drawn or left whole.
 */
#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"
#include "core/fail.h"

cpu_transform cpu_transform_of(const gumbel_problem *p, float inverse_temperature,
                               const float *bias)
{
    return (cpu_transform){.scale = p->scale,
                           .soft_cap = p->soft_cap,
                           .inverse_cap = p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f,
                           .inverse_temperature = inverse_temperature,
                           .bias = bias};
}

const float *cpu_tile_bias(const gumbel_problem *p, const cpu_slot *slot,
                           const cpu_kernels *kernels, int64_t token, int low, int high)
{
    int64_t first_row = token + low - p->first_token;
    int size = cpu_element_size(p->bias.dtype);
    if (!p->bias.data)
        return NULL;
    GUMBEL_ASSERT(slot->bias && low < high);
    kernels->transform((const char *)p->bias.data + first_row * size, p->bias.dtype, high - low,
                       &cpu_identity, slot->bias);
    return slot->bias;
}

float cpu_piece_factor(const cpu_job *job, const cpu_piece *piece, float inverse_temperature)
{
    cpu_transform t = cpu_transform_of(job->problem, inverse_temperature, piece->bias);
    if (piece->dtype != GUMBEL_FLOAT32 || piece->bias || t.soft_cap != 0.0f || t.scale <= 0.0f ||
        cpu_edits_touch(&job->edits, piece))
        return 0.0f;
    return t.scale == 1.0f ? inverse_temperature : inverse_temperature == 1.0f ? t.scale : 0.0f;
}

void cpu_transform_piece(const cpu_job *job, const cpu_piece *piece, float inverse_temperature,
                         float *z)
{
    GUMBEL_ASSERT(piece->from && z);
    GUMBEL_ASSERT(inverse_temperature > 0.0f);
    cpu_transform t = cpu_transform_of(job->problem, inverse_temperature, piece->bias);
    cpu_edits_transform(&job->edits, job->device->kernels, piece, &t, z);
}

int cpu_pad_piece(const cpu_piece *piece, float *z)
{
    int end = (int)cpu_rounded_up(piece->high, GUMBEL_BLOCK);
    GUMBEL_ASSERT(piece->low >= 0 && piece->low <= piece->high && piece->high <= CPU_TILE_MOST);
    for (int i = 0; i < piece->low; i++)
        z[i] = -INFINITY;
    for (int i = piece->high; i < end; i++)
        z[i] = -INFINITY;
    return end / GUMBEL_BLOCK;
}
