/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of the CPU backend: it packs hidden states, hands out tiles to threads, and walks each
 * tile through product (or widening), transforms and draw, in buffers that stay in the caches.
 */
#include "cpu/call/cpu_job.h"
#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/call/cpu_stage.h"
#include "cpu/call/screen/cpu_screen.h"
#include "cpu/lanes/cpu_widen.h"

static cpu_slot carve_slot(gumbel_cursor *cursor, const cpu_device *cpu, int64_t batch,
                           int64_t hidden_size, int32_t num_samples)
{
    int fused = hidden_size > 0;
    size_t tile = (size_t)(fused ? cpu->fused_tile : cpu->logits_tile);
    GUMBEL_ASSERT(batch >= 0 && num_samples >= 1);
    GUMBEL_ASSERT(tile >= GUMBEL_BLOCK && tile <= CPU_TILE_MOST && tile % GUMBEL_BLOCK == 0);
    GUMBEL_ASSERT(cpu->kernels->panel >= 1 && cpu->kernels->panel <= CPU_PANEL_MOST);
    size_t group = PRODUCT_GROUP * (size_t)cpu->kernels->panel;
    cpu_slot slot = {0};
    slot.summaries =
        gumbel_carve_array(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
    slot.z = gumbel_carve_array(cursor, fused ? (size_t)batch : 1, tile + CPU_LANES, sizeof(float));
    slot.bias = gumbel_carve_array(cursor, fused, tile, sizeof(float));
    slot.lanes = gumbel_carve_array(cursor, fused * group * CPU_LANES, PRODUCT_ROOM, sizeof(float));
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
    return gumbel_carve_array(cursor, (size_t)batch, (size_t)cpu_rounded_up(hidden_size, CPU_CHUNK),
                              sizeof(float));
}

size_t cpu_workspace_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                          int32_t num_samples)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {0};
    carve_panels(&cursor, batch, hidden_size);
    gumbel_carve_array(&cursor, (size_t)cpu->threads,
                       slot_size(cpu, batch, hidden_size, num_samples), 1);
    /* Room for the fused way in serves logits too. */
    size_t logits = hidden_size > 0 ? cpu_workspace_size(device, batch, 0, num_samples) : 0;
    return cursor.used > logits ? cursor.used : logits;
}

/* Hidden states as float32 in panels [chunk][row][32], in the order of cpu_pack_place(). */
static void pack_hidden(const cpu_device *cpu, const gumbel_problem *p, float *panels)
{
    int64_t chunks = cpu_rounded_up(p->hidden_size, CPU_CHUNK) / CPU_CHUNK;
    int element = cpu_element_size(p->hidden.dtype);
    for (int64_t b = 0; b < p->batch; b++) {
        int64_t start = b / cpu->kernels->panel * cpu->kernels->panel;
        int64_t rows =
            p->batch - start < cpu->kernels->panel ? p->batch - start : cpu->kernels->panel;
        const char *row = (const char *)p->hidden.data + b * p->hidden.stride * element;
        float *panel = panels + start * chunks * CPU_CHUNK;
        for (int64_t c = 0; c < chunks; c++) {
            float wide[CPU_CHUNK] = {0}, *to = panel + (c * rows + b - start) * CPU_CHUNK;
            int64_t left = p->hidden_size - c * CPU_CHUNK;
            GUMBEL_ASSERT(left > 0);
            GUMBEL_ASSERT(b >= start && b - start < rows);
            cpu->kernels->transform(row + c * CPU_CHUNK * element, p->hidden.dtype,
                                    left < CPU_CHUNK ? (int)left : CPU_CHUNK, &cpu_identity, wide);
            for (int i = 0; i < CPU_CHUNK; i++)
                to[cpu_pack_place(p->weight.dtype, i)] = wide[i];
        }
    }
}

void cpu_job_unpack(const cpu_job *job, int64_t b, float *hidden)
{
    const gumbel_problem *p = job->problem;
    int64_t chunks = cpu_rounded_up(p->hidden_size, CPU_CHUNK) / CPU_CHUNK;
    int64_t most = job->device->kernels->panel, start = b / most * most;
    int64_t rows = p->batch - start < most ? p->batch - start : most;
    const float *panel = job->panels + start * chunks * CPU_CHUNK;
    GUMBEL_ASSERT(b >= start && b < start + rows && rows <= most);
    for (int64_t c = 0; c < chunks; c++)
        memcpy(hidden + c * CPU_CHUNK, panel + (c * rows + b - start) * CPU_CHUNK,
               CPU_CHUNK * sizeof *hidden);
}

/* Transform and draw a piece. `z` is room for the tile, and may hold `from` at z + low. */
static void draw_piece(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z)
{
    const gumbel_problem *p = job->problem;
    gumbel_row row = gumbel_problem_row(p, piece->b);
    int32_t samples = p->sampling.num_samples;
    int low = piece->low, high = piece->high;
    GUMBEL_ASSERT(piece->b >= 0 && piece->b < p->batch);
    GUMBEL_ASSERT(low >= 0 && low < high && high <= job->tile);
    GUMBEL_ASSERT(piece->token % GUMBEL_BLOCK == 0);
    GUMBEL_ASSERT(piece->token + low >= p->first_token && piece->token + high <= p->end_token);
    int random = !row.greedy && !p->sampling.noise;
    int whole = low == 0 && high % GUMBEL_BLOCK == 0;
    float factor = whole ? cpu_piece_factor(job, piece, row.inverse_temperature) : 0.0f;
    int as_is = factor == 1.0f || (random && factor > 0.0f);
    if (!as_is) {
        factor = 1.0f;
        cpu_transform_piece(job, piece, row.inverse_temperature, z + low);
        cpu_pad_piece(piece, z);
    }
    cpu_draw draw = {.row = &row,
                     .num_samples = row.greedy ? 1 : samples,
                     .with_mass = p->with_mass,
                     .token = (uint32_t)piece->token,
                     .blocks = (high + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK,
                     .factor = factor,
                     .summaries = slot->summaries + piece->b * samples,
                     .candidates =
                         job->screen ? cpu_screen_lists(job, slot->index, piece->b) : NULL,
                     .noise_stride = p->sampling.noise_stride,
                     .low = low,
                     .high = high};
    if (p->sampling.noise && !row.greedy)
        draw.noise = p->sampling.noise + piece->b * samples * draw.noise_stride +
                     (piece->token + low - p->first_token);
    GUMBEL_ASSERT(draw.blocks * GUMBEL_BLOCK >= high &&
                  draw.blocks * GUMBEL_BLOCK < high + GUMBEL_BLOCK);
    job->device->kernels->draw(as_is ? piece->from : z, &draw);
}

/* Draw what mask and bans leave of a piece: blocks that hold nothing are passed over. */
static void draw_stretches(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece,
                           float *z)
{
    cpu_piece stretch = {.token = piece->token};
    while (cpu_edits_next(&job->edits, piece, &stretch))
        draw_piece(job, slot, &stretch, z + (stretch.token - piece->token));
}

/* What becomes of a piece whose logits are there. */
static void run_piece(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z)
{
    if (job->stage)
        cpu_stage_piece(job, slot, piece, z);
    else
        draw_stretches(job, slot, piece, z);
}

/* Whether any row looks at the tile's logits. A grammar often spares most of the weights. */
static int is_needed(const cpu_job *job, int64_t token, int low, int high)
{
    cpu_piece piece = {.token = token, .low = low, .high = high};
    if (job->stage && job->stage->raw)
        return 1;
    for (; piece.b < job->problem->batch; piece.b++)
        if (cpu_edits_leave(&job->edits, &piece))
            return 1;
    return 0;
}

/* One tile of the vocabulary for all rows of the batch, from hidden states. Tokens low..high of the
 * tile are in the shard and count. */
static void run_fused_tile(const cpu_job *job, const cpu_slot *slot, int64_t token, int low,
                           int high)
{
    const gumbel_problem *p = job->problem;
    const cpu_kernels *kernels = job->device->kernels;
    int64_t first_row = token + low - p->first_token;
    int element = cpu_element_size(p->weight.dtype);
    GUMBEL_ASSERT(token % GUMBEL_BLOCK == 0 && low >= 0 && low < high && high <= job->tile);
    GUMBEL_ASSERT(first_row >= 0 && first_row + high - low <= p->vocab);
    GUMBEL_ASSERT(slot->z && slot->lanes && (slot->bias || !p->bias.data));
    const float *bias =
        job->multiply_only ? NULL : cpu_tile_bias(p, slot, kernels, token, low, high);
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
    if (is_needed(job, token, low, high)) {
        if (job->screen)
            cpu_screen_tile(job, slot, token, low, high);
        else
            kernels->product(&product);
    }
    for (int64_t b = 0; b < p->batch && !job->multiply_only; b++) {
        float *z = slot->z + b * product.out_stride;
        cpu_piece piece = {b, z + low, GUMBEL_FLOAT32, bias, token, low, high};
        if (job->screen && cpu_screen_left(job, slot->index, b))
            continue;
        if (job->screen)
            cpu_screen_keep(job, slot, &piece, z);
        run_piece(job, slot, &piece, z);
    }
}

/* One tile of one row, from logits. */
static void run_logits_tile(const cpu_job *job, const cpu_slot *slot, int64_t b, int64_t token,
                            int low, int high)
{
    const gumbel_problem *p = job->problem;
    int64_t at = b * p->logits.stride + token + low - p->first_token;
    GUMBEL_ASSERT(b >= 0 && b < p->batch);
    GUMBEL_ASSERT(token + low >= p->first_token && token + high <= p->first_token + p->vocab);
    const char *from = (const char *)p->logits.data + at * cpu_element_size(p->logits.dtype);
    cpu_piece piece = {b, from, p->logits.dtype, NULL, token, low, high};
    run_piece(job, slot, &piece, slot->z);
}

cpu_slot cpu_job_slot(const cpu_job *job, int32_t index)
{
    const gumbel_problem *p = job->problem;
    gumbel_cursor cursor = {job->slots + (size_t)index * job->slot_bytes, 0};
    GUMBEL_ASSERT(index >= 0 && index < job->device->threads);
    cpu_slot slot =
        carve_slot(&cursor, job->device, p->batch, p->hidden_size, p->sampling.num_samples);
    slot.index = index;
    GUMBEL_ASSERT(cursor.used <= job->slot_bytes);
    GUMBEL_ASSERT(slot.summaries);
    return slot;
}

/* One thread's share: claim items until none is left. */
static void run_slot(void *argument, int32_t index)
{
    cpu_job *job = argument;
    const gumbel_problem *p = job->problem;
    cpu_slot slot = cpu_job_slot(job, index);
    if (!job->multiply_only)
        gumbel_summaries_clear(slot.summaries, p->batch * p->sampling.num_samples);
    for (int64_t item;
         (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->items;) {
        int64_t token = job->first_tile + item % job->tiles * job->tile;
        int64_t low = p->first_token > token ? p->first_token - token : 0;
        int64_t high = p->end_token - token < job->tile ? p->end_token - token : job->tile;
        if (high <= low)
            continue;
        GUMBEL_ASSERT(item >= 0 && high <= job->tile);
        GUMBEL_ASSERT(token + low >= p->first_token && token + high <= p->end_token);
        if (p->hidden_size > 0)
            run_fused_tile(job, &slot, token, (int)low, (int)high);
        else
            run_logits_tile(job, &slot, item / job->tiles, token, (int)low, (int)high);
    }
}

int32_t cpu_job_run(cpu_job *job)
{
    return cpu_run_task(job->device, cpu_worth_threads(job->problem), run_slot, job);
}

void cpu_job_prepare(cpu_job *job, cpu_device *cpu, const gumbel_problem *p, void *workspace)
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
    job->tiles = cpu_rounded_up(end - job->first_tile, job->tile) / job->tile;
    job->items = job->tiles * (p->hidden_size > 0 ? 1 : p->batch);
    size_t plain =
        cpu_workspace_size(&cpu->base, p->batch, p->hidden_size, p->sampling.num_samples);
    GUMBEL_ASSERT(cursor.used + (size_t)cpu->threads * job->slot_bytes <= plain);
    GUMBEL_ASSERT(((uintptr_t)workspace & (GUMBEL_WORKSPACE_ALIGNMENT - 1)) == 0);
    GUMBEL_ASSERT(job->first_tile <= p->first_token &&
                  p->first_token - job->first_tile < GUMBEL_BLOCK);
    GUMBEL_ASSERT(job->tiles >= 0 && job->tiles * job->tile >= end - job->first_tile);
    cpu_edits_prepare(&job->edits, cpu, p, cursor.base + plain);
    if (p->hidden_size > 0)
        pack_hidden(cpu, p, panels);
}

void cpu_job_merge(const cpu_job *job, int32_t used, gumbel_summary *summaries)
{
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    GUMBEL_ASSERT(used >= 1 && used <= job->device->threads);
    gumbel_summaries_clear(summaries, p->batch * samples);
    for (int32_t i = 0; i < used; i++)
        gumbel_summaries_merge(summaries, cpu_job_slot(job, i).summaries, p->batch * samples);
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
}

gumbel_status cpu_partial(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                          gumbel_summary *summaries, void *workspace, gumbel_error *error)
{
    (void)plan, (void)error;
    cpu_job job = {0};
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(p->batch > 0 && summaries);
    cpu_job_prepare(&job, (cpu_device *)device, p, workspace);
    cpu_job_merge(&job, cpu_job_run(&job), summaries);
    return GUMBEL_OK;
}

gumbel_status cpu_multiply(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                           void *workspace, gumbel_error *error)
{
    (void)plan, (void)error;
    cpu_job job = {.multiply_only = 1};
    cpu_job_prepare(&job, (cpu_device *)device, p, workspace);
    cpu_job_run(&job);
    return GUMBEL_OK;
}
