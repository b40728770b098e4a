/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/call/cpu_stage.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

#include <string.h>

void cpu_carve_stage(cpu_stage *stage, gumbel_cursor *cursor, const gumbel_problem *p,
                     int32_t threads, int own_values)
{
    size_t batch = (size_t)p->batch, vocab = (size_t)p->vocab;
    int64_t first = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    /* If no token counts, no tile is staged, and rows have no blocks. */
    int64_t range = p->end_token > p->first_token ? p->end_token - first : 0;
    stage->blocks = cpu_round_up(range, GUMBEL_BLOCK) / GUMBEL_BLOCK;
    stage->maxima_stride = cpu_round_up(stage->blocks, GUMBEL_BLOCK);
    size_t maxima = (size_t)stage->maxima_stride;
    GUMBEL_ASSERT(stage->blocks >= 0 && stage->maxima_stride >= stage->blocks);
    size_t summaries = p->features & GUMBEL_FEATURE_RAW ? (size_t)threads : 0;
    if (own_values) {
        stage->values = gumbel_carve_array(cursor, batch, vocab, sizeof(float));
        stage->stride = p->vocab;
        stage->rows = gumbel_carve_array(cursor, batch, 1, sizeof *stage->rows);
        if (p->hidden_size > 0 || p->features & GUMBEL_FEATURE_TRANSFORMS)
            stage->rows = NULL;
    }
    stage->edges = gumbel_carve_array(cursor, batch, 2 * GUMBEL_BLOCK, sizeof(float));
    stage->block_maxima = gumbel_carve_array(cursor, batch, maxima, sizeof(float));
    stage->group_maxima = gumbel_carve_array(cursor, batch, maxima / GUMBEL_BLOCK, sizeof(float));
    stage->raw = gumbel_carve_array(cursor, summaries, batch, sizeof(gumbel_summary));
    if (summaries == 0)
        stage->raw = NULL;
    const uint32_t keeps_raw = GUMBEL_FEATURE_RAW | GUMBEL_FEATURE_ENTROPY;
    if (p->hidden_size > 0 && (p->features & keeps_raw) == keeps_raw) {
        stage->raw_logits = gumbel_carve_array(cursor, batch, vocab, sizeof(float));
        stage->raw_stride = p->vocab;
    }
}

cpu_row_method cpu_choose_row_method(const gumbel_problem *p, int64_t b)
{
    const gumbel_row row = gumbel_problem_row(p, b);
    cpu_row_method m = {.inverse_temperature = row.inverse_temperature,
                        .scale = 1.0f,
                        .rules = gumbel_problem_rules(p, b, row.greedy)};
    if (p->features & GUMBEL_FEATURE_PROGRAM && !row.greedy) {
        const gumbel_row_program program = gumbel_problem_program(p, b);
        m.runs_program = p->features & GUMBEL_FEATURES_OF_REMOVED_TOKENS ||
                         !gumbel_find_program_rules(&program, p->vocab, &m.rules);
        m.first_rule = gumbel_find_program_prefix(&program).length;
        if (m.runs_program && m.first_rule == 0)
            m.inverse_temperature = 1.0f;
    }
    if (!m.runs_program && m.rules.before && gumbel_rules_truncate(&m.rules)) {
        m.scale = m.inverse_temperature;
        m.inverse_temperature = 1.0f;
    }
    return m;
}

float cpu_find_staged_temperature(const gumbel_problem *p, int64_t b)
{
    return cpu_choose_row_method(p, b).inverse_temperature;
}

float cpu_find_staged_scale(const gumbel_problem *p, int64_t b)
{
    return cpu_choose_row_method(p, b).scale;
}

void cpu_choose_staged_rows(const cpu_job *job)
{
    const gumbel_problem *p = job->problem;
    const cpu_stage *stage = job->stage;
    for (int64_t b = 0; b < p->batch && stage->rows; b++) {
        const float inverse_temperature = cpu_find_staged_temperature(p, b);
        const cpu_row_tile tile = {.b = b, .dtype = p->logits.dtype};
        const int is_copied = cpu_find_plain_factor(job, &tile, inverse_temperature) != 1.0f;
        const float *logits = (const float *)p->logits.data + b * p->logits.stride;
        stage->rows[b] = (cpu_staged_row){is_copied ? stage->values + b * stage->stride : logits,
                                          inverse_temperature};
    }
}

/* Memory of the stage for the value of token first_token of row b. */
static float *get_own_row(const cpu_job *job, int64_t b)
{
    return job->stage->values + b * job->stage->stride;
}

static const float *get_staged_row(const cpu_job *job, int64_t b)
{
    return job->stage->rows ? job->stage->rows[b].values : get_own_row(job, b);
}

void cpu_use_own_blocks(const cpu_job *job, int64_t b)
{
    if (job->stage->rows)
        job->stage->rows[b].values = get_own_row(job, b);
}

/* Adds the mass of the raw logits. The tile then reads these from z + low. */
static void add_raw_mass(const cpu_job *job, const cpu_scratch *scratch, cpu_row_tile *tile,
                         float *z)
{
    const gumbel_problem *p = job->problem;
    gumbel_row row = gumbel_problem_row(p, tile->b);
    cpu_transform identity = cpu_identity;
    GUMBEL_ASSERT(job->stage->raw && scratch->thread < job->device->threads);
    identity.bias = tile->bias;
    job->device->kernels->transform_logits(tile->from, tile->dtype, tile->high - tile->low,
                                           &identity, z + tile->low);
    tile->from = z + tile->low;
    tile->dtype = GUMBEL_FLOAT32;
    tile->bias = NULL;
    row.greedy = 0;
    cpu_draw mass = {.row = &row,
                     .with_mass = 1,
                     .token = (uint32_t)tile->token,
                     .blocks = cpu_pad_row_tile(tile, z),
                     .factor = 1.0f,
                     .summaries = job->stage->raw + scratch->thread * p->batch + tile->b};
    job->device->kernels->draw_tokens(z, &mass);
    if (job->stage->raw_logits)
        memcpy(job->stage->raw_logits + tile->b * job->stage->raw_stride +
                   (tile->token + tile->low - p->first_token),
               z + tile->low, (size_t)(tile->high - tile->low) * sizeof(float));
}

/* Copies tokens low .. high of a block, which start at v, to `edge`, padded, and finds their
 * maximum. */
static uint32_t stage_edge_block(const cpu_job *job, const float *v, int low, int high, float *edge,
                                 float *block_max)
{
    GUMBEL_ASSERT(low >= 0 && low < high && low < GUMBEL_BLOCK);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        edge[i] = i >= low && i < high ? v[i - low] : -INFINITY;
    return job->device->kernels->find_maxima(edge, 1, block_max);
}

/* Finds the block maxima of a tile whose first counted token is v[0]; returns its flags. */
static uint32_t stage_block_maxima(const cpu_job *job, const cpu_row_tile *tile, const float *v)
{
    const cpu_stage *stage = job->stage;
    float own_edges[2 * GUMBEL_BLOCK], own_maxima[CPU_TILE_MAX / GUMBEL_BLOCK];
    float *edges = own_edges, *maxima = own_maxima;
    int low = tile->low, high = tile->high, first = low > 0, last = high / GUMBEL_BLOCK;
    uint32_t flags = 0;
    if (stage->block_maxima) {
        int64_t block = (tile->token - job->first_tile) / GUMBEL_BLOCK;
        edges = stage->edges + tile->b * 2 * GUMBEL_BLOCK;
        maxima = stage->block_maxima + tile->b * stage->maxima_stride + block;
        GUMBEL_ASSERT(tile->token >= job->first_tile);
        GUMBEL_ASSERT(block + (high - 1) / GUMBEL_BLOCK < stage->blocks);
    }
    if (first)
        flags |= stage_edge_block(job, v, low, high, edges, maxima);
    if (last > first)
        flags |= job->device->kernels->find_maxima(v + first * GUMBEL_BLOCK - low, last - first,
                                                   maxima + first);
    if (last >= first && high > last * GUMBEL_BLOCK)
        flags |= stage_edge_block(job, v + last * GUMBEL_BLOCK - low, 0, high - last * GUMBEL_BLOCK,
                                  edges + GUMBEL_BLOCK, maxima + last);
    return flags;
}

/* Stores the values of a tile, which may be in place of its logits. */
static void store_rounded_tile(const cpu_job *job, const cpu_row_tile *tile, const float *v)
{
    const gumbel_row_array *to = &job->stage->rounded;
    int64_t at = tile->b * to->stride + (tile->token + tile->low - job->problem->first_token);
    job->device->kernels->store_values(v, tile->high - tile->low, to->dtype,
                                       (char *)to->data + at * cpu_get_element_size(to->dtype));
}

void cpu_stage_row_tile(const cpu_job *job, const cpu_scratch *scratch, const cpu_row_tile *tile,
                        float *z)
{
    const gumbel_problem *p = job->problem;
    const cpu_stage *stage = job->stage;
    const float inverse_temperature = stage->rows ? stage->rows[tile->b].inverse_temperature
                                                  : cpu_find_staged_temperature(p, tile->b);
    cpu_row_tile source = *tile;
    const float *v = tile->from;
    GUMBEL_ASSERT(tile->low < tile->high && tile->b < p->batch);
    GUMBEL_ASSERT(!stage->values != !stage->rounded.data);
    if (stage->raw)
        add_raw_mass(job, scratch, &source, z);
    if (stage->rounded.data) {
        cpu_transform_row_tile(job, &source, inverse_temperature, z + tile->low);
        v = z + tile->low;
        store_rounded_tile(job, tile, v);
    } else if (get_staged_row(job, tile->b) == get_own_row(job, tile->b)) {
        float *to = get_own_row(job, tile->b) + (tile->token + tile->low - p->first_token);
        cpu_transform_row_tile(job, &source, inverse_temperature, to);
        v = to;
    }
    scratch->summaries[tile->b * p->sampling.num_samples].flags |= stage_block_maxima(job, tile, v);
}

static int is_first_block_partial(const cpu_job *job)
{
    return job->stage->blocks > 0 && job->problem->first_token > job->first_tile;
}

/* Whether the last block is partial, and not also the first one. */
static int is_last_block_partial(const cpu_job *job)
{
    int separate = job->stage->blocks > is_first_block_partial(job);
    return separate && job->problem->end_token % GUMBEL_BLOCK != 0;
}

/* The padded copy of a partial first or last block; NULL if the block is whole. */
static float *find_edge_block(const cpu_job *job, int64_t b, int64_t block)
{
    const cpu_stage *stage = job->stage;
    float *edges = stage->edges + b * 2 * GUMBEL_BLOCK;
    GUMBEL_ASSERT(b >= 0 && b < job->problem->batch);
    GUMBEL_ASSERT(block >= 0 && block < stage->blocks);
    if (block == 0 && is_first_block_partial(job))
        return edges;
    if (block == stage->blocks - 1 && is_last_block_partial(job))
        return edges + GUMBEL_BLOCK;
    return NULL;
}

/* Index of a block in its row; its first token may come before the row's. */
static int64_t find_block_start(const cpu_job *job, int64_t block)
{
    return block * GUMBEL_BLOCK - (job->problem->first_token - job->first_tile);
}

const float *cpu_get_staged_block(const cpu_job *job, int64_t b, int64_t block)
{
    const float *edge = find_edge_block(job, b, block);
    return edge ? edge : get_staged_row(job, b) + find_block_start(job, block);
}

float *cpu_get_own_block(const cpu_job *job, int64_t b, int64_t block)
{
    float *edge = find_edge_block(job, b, block);
    return edge ? edge : get_own_row(job, b) + find_block_start(job, block);
}

cpu_values cpu_get_staged_values(const cpu_job *job, int64_t b)
{
    const cpu_stage *stage = job->stage;
    int64_t groups = stage->maxima_stride / GUMBEL_BLOCK;
    float *maxima = stage->block_maxima + b * stage->maxima_stride;
    float *group_maxima = stage->group_maxima + b * groups;
    int64_t first = is_first_block_partial(job), last = stage->blocks - is_last_block_partial(job);
    GUMBEL_ASSERT(first <= last);
    GUMBEL_ASSERT(stage->block_maxima && stage->group_maxima);
    cpu_values values = {.blocks = stage->blocks, .largest = -INFINITY, .scale = 1.0f};
    for (int64_t k = stage->blocks; k < stage->maxima_stride; k++)
        maxima[k] = -INFINITY;
    values.block_maxima = (cpu_span){maxima, group_maxima, groups, 1};
    job->device->kernels->find_maxima(maxima, groups, group_maxima);
    for (int64_t k = 0; k < groups; k++)
        values.largest = group_maxima[k] > values.largest ? group_maxima[k] : values.largest;
    const int64_t starts[] = {0, first, last, stage->blocks};
    for (int i = 0; i < 3; i++)
        if (starts[i + 1] > starts[i])
            values.span[values.spans++] =
                (cpu_span){cpu_get_staged_block(job, b, starts[i]), maxima + starts[i],
                           starts[i + 1] - starts[i], 1};
    GUMBEL_ASSERT(stage->blocks == 0 || values.spans > 0);
    return values;
}
