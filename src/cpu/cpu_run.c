/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of the CPU backend: it packs hidden states, hands out tiles to threads, and walks each
 * tile through product (or widening), transforms and draw, in buffers that stay in the caches.
 */
#include "core/workspace.h"
#include "cpu/cpu_device.h"
#include "cpu/cpu_policy.h"
#include "cpu/cpu_widen.h"

#include <stdatomic.h>

/* What one thread writes. */
typedef struct cpu_slot {
    gumbel_summary *summaries; /* [B, S] */
    float *z;                  /* [B] or [1] rows of tile + 16: whole vectors may spill over */
    float *bias;               /* [tile] */
    float *lanes;              /* [PRODUCT_GROUP * panel][PRODUCT_ROOM][16], fused only */
} cpu_slot;

typedef struct cpu_job {
    const cpu_device *device;
    const gumbel_problem *problem;
    const float *panels;  /* packed hidden states */
    unsigned char *slots; /* threads pieces of slot_bytes */
    size_t slot_bytes;
    int multiply_only;
    int64_t first_tile; /* global id of tile 0, a multiple of 64, <= first_token */
    int64_t tiles;      /* of the vocabulary */
    int64_t items;      /* claims: tiles, times B from logits */
    int32_t tile;
    _Atomic int64_t next;
} cpu_job;

static int64_t rounded_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static cpu_slot carve_slot(gumbel_cursor *cursor, const cpu_device *cpu, int64_t batch,
                           int64_t hidden_size, int32_t num_samples)
{
    int fused = hidden_size > 0;
    size_t tile = (size_t)(fused ? cpu->fused_tile : cpu->logits_tile);
    size_t group = PRODUCT_GROUP * (size_t)cpu->kernels->panel;
    cpu_slot slot;
    slot.summaries =
        gumbel_carve(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
    slot.z = gumbel_carve(cursor, fused ? (size_t)batch : 1, tile + CPU_LANES, sizeof(float));
    slot.bias = gumbel_carve(cursor, fused, tile, sizeof(float));
    slot.lanes = gumbel_carve(cursor, fused * group * CPU_LANES, PRODUCT_ROOM, sizeof(float));
    return slot;
}

static size_t slot_size(const cpu_device *cpu, int64_t batch, int64_t hidden_size,
                        int32_t num_samples)
{
    gumbel_cursor cursor = {0};
    carve_slot(&cursor, cpu, batch, hidden_size, num_samples);
    return cursor.used;
}

static float *carve_panels(gumbel_cursor *cursor, int64_t batch, int64_t hidden_size)
{
    return gumbel_carve(cursor, (size_t)batch, (size_t)rounded_up(hidden_size, CPU_CHUNK),
                        sizeof(float));
}

size_t cpu_workspace_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                          int32_t num_samples)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {0};
    carve_panels(&cursor, batch, hidden_size);
    gumbel_carve(&cursor, (size_t)cpu->threads, slot_size(cpu, batch, hidden_size, num_samples), 1);
    /* Room for the fused way in serves logits too. */
    size_t logits = hidden_size > 0 ? cpu_workspace_size(device, batch, 0, num_samples) : 0;
    return cursor.used > logits ? cursor.used : logits;
}

/* Hidden states as float32 in panels [chunk][row][32], in the order of cpu_pack_place(). */
static void pack_hidden(const cpu_device *cpu, const gumbel_problem *p, float *panels)
{
    int64_t chunks = rounded_up(p->hidden_size, CPU_CHUNK) / CPU_CHUNK;
    int element = p->hidden.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t start = b / cpu->kernels->panel * cpu->kernels->panel;
        int64_t rows =
            p->batch - start < cpu->kernels->panel ? p->batch - start : cpu->kernels->panel;
        const char *row = (const char *)p->hidden.data + b * p->hidden.stride * element;
        float *panel = panels + start * chunks * CPU_CHUNK;
        for (int64_t c = 0; c < chunks; c++) {
            float wide[CPU_CHUNK] = {0}, *to = panel + (c * rows + b - start) * CPU_CHUNK;
            int64_t left = p->hidden_size - c * CPU_CHUNK;
            cpu->kernels->transform(row + c * CPU_CHUNK * element, p->hidden.dtype,
                                    left < CPU_CHUNK ? (int)left : CPU_CHUNK, &cpu_identity, wide);
            for (int i = 0; i < CPU_CHUNK; i++)
                to[cpu_pack_place(p->weight.dtype, i)] = wide[i];
        }
    }
}

static cpu_transform transform_of(const gumbel_problem *p, const gumbel_row *row, const float *bias)
{
    return (cpu_transform){.scale = p->scale,
                           .soft_cap = p->soft_cap,
                           .inverse_cap = p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f,
                           .inverse_temperature = row->inverse_temperature,
                           .bias = bias};
}

/* Transform and draw row b of a tile. Its tokens low .. high, from global id `token` + low on, are
 * in the shard and count; their logits start at `from`, their biases at `bias`. `z` is room for the
 * tile, and may hold `from` at z + low. */
static void draw_row(const cpu_job *job, const cpu_slot *slot, int64_t b, const void *from,
                     gumbel_dtype dtype, const float *bias, float *z, int64_t token, int low,
                     int high)
{
    const gumbel_problem *p = job->problem;
    gumbel_row row = gumbel_problem_row(p, b);
    cpu_transform t = transform_of(p, &row, bias);
    int32_t samples = p->sampling.num_samples;
    int blocks = (int)(rounded_up(high, GUMBEL_BLOCK) / GUMBEL_BLOCK);
    int as_is =
        cpu_is_identity(&t) && dtype == GUMBEL_FLOAT32 && low == 0 && high == blocks * GUMBEL_BLOCK;
    if (!as_is) {
        job->device->kernels->transform(from, dtype, high - low, &t, z + low);
        for (int i = 0; i < low; i++)
            z[i] = -INFINITY;
        for (int i = high; i < blocks * GUMBEL_BLOCK; i++)
            z[i] = -INFINITY;
    }
    cpu_draw draw = {.row = &row,
                     .num_samples = row.greedy ? 1 : samples,
                     .with_mass = p->with_mass,
                     .token = (uint32_t)token,
                     .blocks = blocks,
                     .summaries = slot->summaries + b * samples,
                     .noise_stride = p->sampling.noise_stride,
                     .low = low,
                     .high = high};
    if (p->sampling.noise && !row.greedy)
        draw.noise =
            p->sampling.noise + b * samples * draw.noise_stride + (token + low - p->first_token);
    job->device->kernels->draw(as_is ? from : z, &draw);
}

/* One tile of the vocabulary for all rows of the batch, from hidden states. Tokens low..high of the
 * tile are in the shard and count. */
static void run_fused_tile(const cpu_job *job, const cpu_slot *slot, int64_t token, int low,
                           int high)
{
    const gumbel_problem *p = job->problem;
    const cpu_kernels *kernels = job->device->kernels;
    int64_t first_row = token + low - p->first_token;
    int element = p->weight.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    const float *bias = NULL;
    if (p->bias.data && !job->multiply_only) {
        int size = p->bias.dtype == GUMBEL_FLOAT32 ? 4 : 2;
        kernels->transform((const char *)p->bias.data + first_row * size, p->bias.dtype, high - low,
                           &cpu_identity, slot->bias);
        bias = slot->bias;
    }
    cpu_product product = {
        .weight = (const char *)p->weight.data + first_row * p->weight.stride * element,
        .dtype = p->weight.dtype,
        .stride_bytes = p->weight.stride * element,
        .hidden_size = p->hidden_size,
        .count = high - low,
        .panels = job->panels,
        .batch = p->batch,
        .lanes = slot->lanes,
        .out_stride = job->tile + CPU_LANES,
        .out = slot->z + low,
    };
    kernels->product(&product);
    for (int64_t b = 0; b < p->batch && !job->multiply_only; b++) {
        float *z = slot->z + b * product.out_stride;
        draw_row(job, slot, b, z + low, GUMBEL_FLOAT32, bias, z, token, low, high);
    }
}

/* One tile of one row, from logits. */
static void run_logits_tile(const cpu_job *job, const cpu_slot *slot, int64_t b, int64_t token,
                            int low, int high)
{
    const gumbel_problem *p = job->problem;
    int element = p->logits.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t at = b * p->logits.stride + token + low - p->first_token;
    const char *from = (const char *)p->logits.data + at * element;
    draw_row(job, slot, b, from, p->logits.dtype, NULL, slot->z, token, low, high);
}

/* One thread's share: claim items until none is left. */
static void run_slot(void *argument, int32_t index)
{
    cpu_job *job = argument;
    const gumbel_problem *p = job->problem;
    gumbel_cursor cursor = {job->slots + (size_t)index * job->slot_bytes, 0};
    cpu_slot slot =
        carve_slot(&cursor, job->device, p->batch, p->hidden_size, p->sampling.num_samples);
    if (!job->multiply_only)
        gumbel_summary_clear(slot.summaries, p->batch * p->sampling.num_samples);
    for (int64_t item;
         (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->items;) {
        int64_t token = job->first_tile + item % job->tiles * job->tile;
        int64_t low = p->first_token > token ? p->first_token - token : 0;
        int64_t high = p->end_token - token < job->tile ? p->end_token - token : job->tile;
        if (high <= low)
            continue;
        if (p->hidden_size > 0)
            run_fused_tile(job, &slot, token, (int)low, (int)high);
        else
            run_logits_tile(job, &slot, item / job->tiles, token, (int)low, (int)high);
    }
}

/* Run the job; the slots used. */
static int32_t run_job(cpu_device *cpu, cpu_job *job)
{
    return cpu_run_task(cpu, cpu_worth_threads(job->problem), run_slot, job);
}

/* Lay out the workspace and pack; the job is ready to run. */
static void prepare(cpu_job *job, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    float *panels = carve_panels(&cursor, p->batch, p->hidden_size);
    int64_t end = p->end_token > p->first_token ? p->end_token : p->first_token;
    job->device = cpu;
    job->problem = p;
    job->panels = panels;
    job->slots = cursor.base + cursor.used;
    job->slot_bytes = slot_size(cpu, p->batch, p->hidden_size, p->sampling.num_samples);
    job->tile = p->hidden_size > 0 ? cpu->fused_tile : cpu->logits_tile;
    job->first_tile = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    job->tiles = rounded_up(end - job->first_tile, job->tile) / job->tile;
    job->items = job->tiles * (p->hidden_size > 0 ? 1 : p->batch);
    if (p->hidden_size > 0)
        pack_hidden(cpu, p, panels);
}

gumbel_status cpu_partial(gumbel_device *device, const gumbel_problem *p, gumbel_summary *summaries,
                          void *workspace, gumbel_error *error)
{
    (void)error;
    cpu_device *cpu = (cpu_device *)device;
    int32_t samples = p->sampling.num_samples;
    cpu_job job = {0};
    prepare(&job, cpu, p, workspace);
    int32_t used = run_job(cpu, &job);
    gumbel_summary_clear(summaries, p->batch * samples);
    for (int32_t i = 0; i < used; i++)
        gumbel_merge(summaries, (const gumbel_summary *)(job.slots + (size_t)i * job.slot_bytes),
                     p->batch * samples);
    /* Threads kept a row's mass, and a greedy row's only draw, in sample 0. */
    for (int64_t b = 0; b < p->batch; b++) {
        int greedy = gumbel_problem_row(p, b).greedy;
        gumbel_summary *row = summaries + b * samples;
        for (int32_t s = 1; s < samples; s++) {
            gumbel_summary own = row[s];
            row[s] = row[0];
            if (!greedy) {
                row[s].best_score = own.best_score;
                row[s].best_z = own.best_z;
                row[s].best_id = own.best_id;
            }
        }
    }
    return GUMBEL_OK;
}

gumbel_status cpu_multiply(gumbel_device *device, const gumbel_problem *p, void *workspace,
                           gumbel_error *error)
{
    (void)error;
    cpu_job job = {.multiply_only = 1};
    prepare(&job, (cpu_device *)device, p, workspace);
    run_job((cpu_device *)device, &job);
    return GUMBEL_OK;
}
