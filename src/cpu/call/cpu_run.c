/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of the CPU backend packs hidden states, lets threads claim tiles, and takes each tile
 * through product (or widening), transforms and draw, in buffers that stay in the caches.
 */
#include "cpu/call/cpu_job.h"
#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/call/cpu_needed.h"
#include "cpu/call/cpu_stage.h"
#include "cpu/call/screen/cpu_screen.h"
#include "cpu/lanes/cpu_widen.h"

/* ------------------------------------------------------------------------------- memory ---- */

static cpu_scratch carve_scratch(gumbel_cursor *cursor, const cpu_device *cpu, int64_t batch,
                                 int64_t hidden_size, int32_t num_samples)
{
    int fused = hidden_size > 0;
    size_t tile = (size_t)(fused ? cpu->fused_tile : cpu->logits_tile);
    GUMBEL_ASSERT(batch >= 0 && num_samples >= 1);
    GUMBEL_ASSERT(tile >= GUMBEL_BLOCK && tile <= CPU_TILE_MAX && tile % GUMBEL_BLOCK == 0);
    GUMBEL_ASSERT(cpu->kernels->panel_rows >= 1 && cpu->kernels->panel_rows <= CPU_PANEL_ROWS_MAX);
    size_t group = PRODUCT_GROUP * (size_t)cpu->kernels->panel_rows;
    cpu_scratch scratch = {0};
    scratch.summaries =
        gumbel_carve_array(cursor, (size_t)batch, (size_t)num_samples, sizeof(gumbel_summary));
    scratch.z =
        gumbel_carve_array(cursor, fused ? (size_t)batch : 1, tile + CPU_LANES, sizeof(float));
    scratch.bias = gumbel_carve_array(cursor, fused, tile, sizeof(float));
    scratch.lanes =
        gumbel_carve_array(cursor, fused * group * CPU_LANES, PRODUCT_ROOM, sizeof(float));
    return scratch;
}

static size_t count_scratch_bytes(const cpu_device *cpu, int64_t batch, int64_t hidden_size,
                                  int32_t num_samples)
{
    gumbel_cursor cursor = {0};
    carve_scratch(&cursor, cpu, batch, hidden_size, num_samples);
    return cursor.used;
}

static float *carve_panels(gumbel_cursor *cursor, int64_t batch, int64_t hidden_size)
{
    return gumbel_carve_array(cursor, (size_t)batch, (size_t)cpu_get_packed_size(hidden_size),
                              sizeof(float));
}

size_t cpu_count_plain_workspace(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                                 int32_t num_samples)
{
    const cpu_device *cpu = (const cpu_device *)device;
    gumbel_cursor cursor = {0};
    carve_panels(&cursor, batch, hidden_size);
    gumbel_carve_array(&cursor, (size_t)cpu->threads,
                       count_scratch_bytes(cpu, batch, hidden_size, num_samples), 1);
    /* A workspace for hidden states also serves calls from logits. */
    size_t logits = hidden_size > 0 ? cpu_count_plain_workspace(device, batch, 0, num_samples) : 0;
    return cursor.used > logits ? cursor.used : logits;
}

cpu_scratch cpu_get_scratch(const cpu_job *job, int32_t thread)
{
    const gumbel_problem *p = job->problem;
    gumbel_cursor cursor = {job->scratch + (size_t)thread * job->scratch_bytes, 0};
    GUMBEL_ASSERT(thread >= 0 && thread < job->device->threads);
    cpu_scratch scratch =
        carve_scratch(&cursor, job->device, p->batch, p->hidden_size, p->sampling.num_samples);
    scratch.thread = thread;
    GUMBEL_ASSERT(cursor.used <= job->scratch_bytes);
    GUMBEL_ASSERT(scratch.summaries);
    return scratch;
}

/* ------------------------------------------------------------------------ hidden states ---- */

/* Index of the first k-tile of row b in the panels [k-tile][row][32]; *stride is the distance to
 * the next k-tile. */
static int64_t find_packed_row(const cpu_device *cpu, const gumbel_problem *p, int64_t b,
                               int64_t *stride)
{
    int64_t panel_rows = cpu->kernels->panel_rows, first = b / panel_rows * panel_rows;
    int64_t rows = p->batch - first < panel_rows ? p->batch - first : panel_rows;
    GUMBEL_ASSERT(b >= first && b < first + rows && rows <= panel_rows);
    *stride = rows * CPU_K_TILE;
    return first * cpu_get_packed_size(p->hidden_size) + (b - first) * CPU_K_TILE;
}

/* Packs hidden states as float32, in the order of cpu_find_packed_place(). */
static void pack_hidden(const cpu_device *cpu, const gumbel_problem *p, float *panels)
{
    int64_t k_tiles = cpu_get_packed_size(p->hidden_size) / CPU_K_TILE, stride;
    int element = cpu_get_element_size(p->hidden.dtype);
    for (int64_t b = 0; b < p->batch; b++) {
        const char *row = (const char *)p->hidden.data + b * p->hidden.stride * element;
        float *to = panels + find_packed_row(cpu, p, b, &stride);
        for (int64_t c = 0; c < k_tiles; c++, to += stride) {
            float wide[CPU_K_TILE] = {0};
            int64_t remaining = p->hidden_size - c * CPU_K_TILE;
            GUMBEL_ASSERT(remaining > 0);
            cpu->kernels->transform_logits(row + c * CPU_K_TILE * element, p->hidden.dtype,
                                           remaining < CPU_K_TILE ? (int)remaining : CPU_K_TILE,
                                           &cpu_identity, wide);
            for (int i = 0; i < CPU_K_TILE; i++)
                to[cpu_find_packed_place(p->weight.dtype, i)] = wide[i];
        }
    }
}

void cpu_unpack_hidden_row(const cpu_job *job, int64_t b, float *hidden)
{
    const gumbel_problem *p = job->problem;
    int64_t k_tiles = cpu_get_packed_size(p->hidden_size) / CPU_K_TILE, stride;
    const float *from = job->panels + find_packed_row(job->device, p, b, &stride);
    for (int64_t c = 0; c < k_tiles; c++)
        memcpy(hidden + c * CPU_K_TILE, from + c * stride, CPU_K_TILE * sizeof *hidden);
}

/* The product of `count` weight rows of the shard, from `row` on; the caller sets its batch and
 * output. */
static cpu_product make_product(const gumbel_problem *p, const cpu_scratch *scratch, int64_t row,
                                int count)
{
    int64_t stride = p->weight.stride * cpu_get_element_size(p->weight.dtype);
    GUMBEL_ASSERT(row >= 0 && row + count <= p->vocab && scratch->lanes);
    return (cpu_product){.weight = (const char *)p->weight.data + row * stride,
                         .dtype = p->weight.dtype,
                         .stride_bytes = stride,
                         .hidden_size = p->hidden_size,
                         .count = count,
                         .lanes = scratch->lanes};
}

float cpu_multiply_row(const cpu_job *job, const cpu_scratch *scratch, int64_t row,
                       const float *hidden)
{
    float out[2 * CPU_LANES];
    cpu_product product = make_product(job->problem, scratch, row, 1);
    product.panels = hidden;
    product.batch = 1;
    product.out = out;
    product.out_stride = 2 * CPU_LANES;
    job->device->kernels->multiply_tile(&product);
    return out[0];
}

/* -------------------------------------------------------------------------------- tiles ---- */

/* Transforms and draws one row of a tile. `z` is room for it, and may hold `from` at z + low. */
static void draw_row_tile(const cpu_job *job, const cpu_scratch *scratch, const cpu_row_tile *tile,
                          float *z)
{
    const gumbel_problem *p = job->problem;
    gumbel_row row = gumbel_problem_row(p, tile->b);
    int64_t first_draw = tile->b * p->sampling.num_samples;
    GUMBEL_ASSERT(tile->b >= 0 && tile->b < p->batch && tile->high <= job->tile_size);
    cpu_draw draw = cpu_make_draw(p, &row, first_draw, tile->token, tile->low, tile->high);
    int random = !row.greedy && !p->sampling.noise;
    int whole = tile->low == 0 && tile->high % GUMBEL_BLOCK == 0;
    float factor = whole ? cpu_find_plain_factor(job, tile, row.inverse_temperature) : 0.0f;
    int as_is = factor == 1.0f || (random && factor > 0.0f);
    if (as_is) {
        draw.factor = factor;
    } else {
        cpu_transform_row_tile(job, tile, row.inverse_temperature, z + tile->low);
        cpu_pad_row_tile(tile, z);
    }
    draw.with_mass = p->with_mass;
    draw.summaries = scratch->summaries + first_draw;
    if (job->screen)
        draw.candidates = cpu_get_candidates(job, scratch->thread, tile->b);
    job->device->kernels->draw_tokens(as_is ? tile->from : z, &draw);
}

/* Draws the blocks of a row's tile that mask and bans allow. */
static void draw_allowed_blocks(const cpu_job *job, const cpu_scratch *scratch,
                                const cpu_row_tile *tile, float *z)
{
    cpu_row_tile run = {.token = tile->token};
    while (cpu_find_allowed_blocks(&job->edits, tile, &run))
        draw_row_tile(job, scratch, &run, z + (run.token - tile->token));
}

static void finish_row_tile(const cpu_job *job, const cpu_scratch *scratch,
                            const cpu_row_tile *tile, float *z)
{
    if (job->stage)
        cpu_stage_row_tile(job, scratch, tile, z);
    else
        draw_allowed_blocks(job, scratch, tile, z);
}

/* Multiplies tokens low .. high of the tile at `token` by all rows. */
static void multiply_tokens(const cpu_job *job, const cpu_scratch *scratch, int64_t token, int low,
                            int high)
{
    const gumbel_problem *p = job->problem;
    cpu_product product = make_product(p, scratch, token + low - p->first_token, high - low);
    product.panels = job->panels;
    product.batch = p->batch;
    product.out = scratch->z + low;
    product.out_stride = job->tile_size + CPU_LANES;
    job->device->kernels->multiply_tile(&product);
}

/* Computes the tile's logits of all rows, or with a screen upper bounds of them, in the thread's
 * z. Logits of tokens that no row reads are undefined. */
static void compute_fused_tile(const cpu_job *job, const cpu_scratch *scratch, int64_t token,
                               int low, int high)
{
    cpu_needed_tokens needed;
    cpu_token_range run = {0, 0};
    GUMBEL_ASSERT(token % GUMBEL_BLOCK == 0 && low >= 0 && low < high && high <= job->tile_size);
    GUMBEL_ASSERT(scratch->z && (scratch->bias || !job->problem->bias.data));
    cpu_find_needed_tokens(job, token, low, high, &needed);
    if (!needed.any)
        return;
    if (job->screen)
        cpu_bound_tile(job, scratch, token, low, high);
    else if (!needed.is_sparse)
        multiply_tokens(job, scratch, token, low, high);
    else /* in ascending order, as a product writes up to 15 elements past its last token */
        while (cpu_find_needed_run(&needed, &run))
            multiply_tokens(job, scratch, token, run.low, run.high);
}

/* Runs one tile for all rows of the batch, from hidden states. */
static void run_fused_tile(const cpu_job *job, const cpu_scratch *scratch, int64_t token, int low,
                           int high)
{
    const gumbel_problem *p = job->problem;
    compute_fused_tile(job, scratch, token, low, high);
    if (job->multiply_only)
        return;
    const float *bias = cpu_load_tile_bias(p, scratch, job->device->kernels, token, low, high);
    for (int64_t b = 0; b < p->batch; b++) {
        float *z = scratch->z + b * (job->tile_size + CPU_LANES);
        cpu_row_tile tile = {b, z + low, GUMBEL_FLOAT32, bias, token, low, high};
        if (job->screen && cpu_is_fallback_row(job, scratch->thread, b))
            continue;
        if (job->screen)
            cpu_stage_bounds(job, scratch, &tile, z);
        finish_row_tile(job, scratch, &tile, z);
    }
}

/* Runs one row of a tile, from logits. */
static void run_logits_tile(const cpu_job *job, const cpu_scratch *scratch, int64_t b,
                            int64_t token, int low, int high)
{
    const gumbel_problem *p = job->problem;
    int64_t at = b * p->logits.stride + token + low - p->first_token;
    GUMBEL_ASSERT(b >= 0 && b < p->batch);
    const char *from = (const char *)p->logits.data + at * cpu_get_element_size(p->logits.dtype);
    cpu_row_tile tile = {b, from, p->logits.dtype, NULL, token, low, high};
    finish_row_tile(job, scratch, &tile, scratch->z);
}

static void run_claimed_tiles(void *argument, int32_t thread)
{
    cpu_job *job = argument;
    const gumbel_problem *p = job->problem;
    cpu_scratch scratch = cpu_get_scratch(job, thread);
    if (!job->multiply_only)
        gumbel_summaries_clear(scratch.summaries, p->batch * p->sampling.num_samples);
    for (int64_t item; cpu_claim_item(&job->next, job->items, &item);) {
        int64_t token = job->first_tile + item % job->tiles * job->tile_size;
        cpu_token_range range = cpu_find_counted_range(p, token, job->tile_size);
        if (range.high <= range.low)
            continue;
        GUMBEL_ASSERT(item >= 0 && range.high <= job->tile_size);
        if (p->hidden_size > 0)
            run_fused_tile(job, &scratch, token, range.low, range.high);
        else
            run_logits_tile(job, &scratch, item / job->tiles, token, range.low, range.high);
    }
}

/* --------------------------------------------------------------------------------- jobs ---- */

int32_t cpu_run_job(cpu_job *job)
{
    return cpu_run_task(job->device, cpu_is_worth_threads(job->problem), run_claimed_tiles, job);
}

void cpu_prepare_job(cpu_job *job, cpu_device *cpu, const gumbel_problem *p, void *workspace)
{
    gumbel_cursor cursor = {workspace, 0};
    float *panels = carve_panels(&cursor, p->batch, p->hidden_size);
    int64_t end = p->end_token > p->first_token ? p->end_token : p->first_token;
    job->device = cpu;
    job->problem = p;
    job->panels = panels;
    job->scratch = cursor.base + cursor.used;
    job->scratch_bytes =
        count_scratch_bytes(cpu, p->batch, p->hidden_size, p->sampling.num_samples);
    job->tile_size = p->hidden_size > 0 ? cpu->fused_tile : cpu->logits_tile;
    job->first_tile = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    job->tiles = cpu_round_up(end - job->first_tile, job->tile_size) / job->tile_size;
    job->items = job->tiles * (p->hidden_size > 0 ? 1 : p->batch);
    size_t plain =
        cpu_count_plain_workspace(&cpu->base, p->batch, p->hidden_size, p->sampling.num_samples);
    GUMBEL_ASSERT(cursor.used + (size_t)cpu->threads * job->scratch_bytes <= plain);
    GUMBEL_ASSERT(((uintptr_t)workspace & (GUMBEL_WORKSPACE_ALIGNMENT - 1)) == 0);
    GUMBEL_ASSERT(job->first_tile <= p->first_token &&
                  p->first_token - job->first_tile < GUMBEL_BLOCK);
    GUMBEL_ASSERT(job->tiles >= 0 && job->tiles * job->tile_size >= end - job->first_tile);
    cpu_prepare_edits(&job->edits, cpu, p, cursor.base + plain);
    if (p->hidden_size > 0)
        pack_hidden(cpu, p, panels);
}

void cpu_merge_job(const cpu_job *job, int32_t used, gumbel_summary *summaries)
{
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    GUMBEL_ASSERT(used >= 1 && used <= job->device->threads);
    gumbel_summaries_clear(summaries, p->batch * samples);
    for (int32_t i = 0; i < used; i++)
        gumbel_summaries_merge(summaries, cpu_get_scratch(job, i).summaries, p->batch * samples);
    /* The threads' sample 0 holds the mass of a row, and the only draw of a greedy row. */
    for (int64_t b = 0; b < p->batch; b++) {
        int greedy = gumbel_problem_row(p, b).greedy;
        gumbel_summary *row = summaries + b * samples;
        row->flags |= gumbel_problem_list_flags(p, b);
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

gumbel_status cpu_draw_partial(gumbel_device *device, const gumbel_problem *p,
                               const gumbel_plan *plan, gumbel_summary *summaries, void *workspace,
                               gumbel_error *error)
{
    (void)plan, (void)error;
    cpu_job job = {0};
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(p->batch > 0 && summaries);
    cpu_prepare_job(&job, (cpu_device *)device, p, workspace);
    cpu_merge_job(&job, cpu_run_job(&job), summaries);
    return GUMBEL_OK;
}

gumbel_status cpu_multiply_head(gumbel_device *device, const gumbel_problem *p,
                                const gumbel_plan *plan, void *workspace, gumbel_error *error)
{
    (void)plan, (void)error;
    cpu_job job = {.multiply_only = 1};
    cpu_prepare_job(&job, (cpu_device *)device, p, workspace);
    cpu_run_job(&job);
    return GUMBEL_OK;
}
