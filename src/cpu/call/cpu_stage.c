/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/call/cpu_stage.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"

static int64_t first_block_start(const gumbel_problem *p)
{
    return p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
}

void cpu_stage_carve(cpu_stage *stage, gumbel_cursor *cursor, const gumbel_problem *p,
                     int32_t threads, int own_values)
{
    size_t batch = (size_t)p->batch, vocab = (size_t)p->vocab;
    /* Where no token counts, no piece is staged: such a row has no blocks. */
    int64_t range = p->end_token > p->first_token ? p->end_token - first_block_start(p) : 0;
    stage->blocks = cpu_rounded_up(range, GUMBEL_BLOCK) / GUMBEL_BLOCK;
    stage->peak_room = cpu_rounded_up(stage->blocks, GUMBEL_BLOCK);
    size_t room = (size_t)stage->peak_room;
    GUMBEL_ASSERT(stage->blocks >= 0 && stage->peak_room >= stage->blocks);
    GUMBEL_ASSERT(stage->peak_room % GUMBEL_BLOCK == 0);
    size_t summaries = p->request & GUMBEL_REQUEST_RAW ? (size_t)threads : 0;
    if (own_values) {
        stage->values = gumbel_carve_array(cursor, batch, vocab, sizeof(float));
        stage->stride = p->vocab;
        stage->in_place = p->hidden_size == 0 && !(p->request & GUMBEL_REQUEST_TRANSFORMS);
    }
    stage->ends = gumbel_carve_array(cursor, batch, 2 * GUMBEL_BLOCK, sizeof(float));
    stage->peaks = gumbel_carve_array(cursor, batch, room, sizeof(float));
    stage->tops = gumbel_carve_array(cursor, batch, room / GUMBEL_BLOCK, sizeof(float));
    stage->raw = gumbel_carve_array(cursor, summaries, batch, sizeof(gumbel_summary));
    if (summaries == 0)
        stage->raw = NULL;
}

/* Whether row b's values are not copied, from logits alone. */
static int stays_in_place(const cpu_job *job, int64_t b, float inverse_temperature)
{
    const cpu_piece piece = {.b = b, .dtype = job->problem->logits.dtype};
    return job->stage->in_place && cpu_piece_factor(job, &piece, inverse_temperature) == 1.0f;
}

float cpu_stage_temperature(const gumbel_problem *p, int64_t b)
{
    gumbel_row row = gumbel_problem_row(p, b);
    gumbel_rules rules = gumbel_problem_rules(p, b, row.greedy);
    return rules.before && gumbel_rules_truncate(&rules) ? 1.0f : row.inverse_temperature;
}

float cpu_stage_scale(const gumbel_problem *p, int64_t b)
{
    gumbel_row row = gumbel_problem_row(p, b);
    gumbel_rules rules = gumbel_problem_rules(p, b, row.greedy);
    return rules.before && gumbel_rules_truncate(&rules) ? row.inverse_temperature : 1.0f;
}

/* Token first_token of row b. */
static const float *row_start(const cpu_job *job, int64_t b)
{
    const gumbel_problem *p = job->problem;
    if (stays_in_place(job, b, cpu_stage_temperature(p, b)))
        return (const float *)p->logits.data + b * p->logits.stride;
    return job->stage->values + b * job->stage->stride;
}

/* Add the mass of the logits as they are, and leave those at z + low. */
static void weigh_raw(const cpu_job *job, const cpu_slot *slot, cpu_piece *piece, float *z)
{
    const gumbel_problem *p = job->problem;
    gumbel_row row = gumbel_problem_row(p, piece->b);
    cpu_transform identity = cpu_identity;
    GUMBEL_ASSERT(job->stage->raw && slot->index < job->device->threads);
    identity.bias = piece->bias;
    job->device->kernels->transform(piece->from, piece->dtype, piece->high - piece->low, &identity,
                                    z + piece->low);
    piece->from = z + piece->low;
    piece->dtype = GUMBEL_FLOAT32;
    piece->bias = NULL;
    row.greedy = 0;
    cpu_draw mass = {.row = &row,
                     .with_mass = 1,
                     .token = (uint32_t)piece->token,
                     .blocks = cpu_pad_piece(piece, z),
                     .factor = 1.0f,
                     .summaries = job->stage->raw + slot->index * p->batch + piece->b};
    job->device->kernels->draw(z, &mass);
}

/* Copy the tokens low .. high of a block that starts at v to `end`, padded, and survey it. */
static uint32_t stage_end(const cpu_job *job, const float *v, int low, int high, float *end,
                          float *peak)
{
    GUMBEL_ASSERT(low >= 0 && low < high && low < GUMBEL_BLOCK);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        end[i] = i >= low && i < high ? v[i - low] : -INFINITY;
    return job->device->kernels->survey(end, 1, peak);
}

/* The peaks of a piece whose first token that counts is v[0]; its flags. */
static uint32_t survey_piece(const cpu_job *job, const cpu_piece *piece, const float *v)
{
    const cpu_stage *stage = job->stage;
    float own_ends[2 * GUMBEL_BLOCK], own_peaks[CPU_TILE_MOST / GUMBEL_BLOCK];
    float *ends = own_ends, *peaks = own_peaks;
    int low = piece->low, high = piece->high, first = low > 0, last = high / GUMBEL_BLOCK;
    uint32_t flags = 0;
    if (stage->peaks) {
        ends = stage->ends + piece->b * 2 * GUMBEL_BLOCK;
        peaks = stage->peaks + piece->b * stage->peak_room +
                (piece->token - job->first_tile) / GUMBEL_BLOCK;
        GUMBEL_ASSERT(piece->token >= job->first_tile);
        GUMBEL_ASSERT((piece->token - job->first_tile) / GUMBEL_BLOCK + (high - 1) / GUMBEL_BLOCK <
                      stage->blocks);
    }
    if (first)
        flags |= stage_end(job, v, low, high, ends, peaks);
    if (last > first)
        flags |= job->device->kernels->survey(v + first * GUMBEL_BLOCK - low, last - first,
                                              peaks + first);
    if (last >= first && high > last * GUMBEL_BLOCK)
        flags |= stage_end(job, v + last * GUMBEL_BLOCK - low, 0, high - last * GUMBEL_BLOCK,
                           ends + GUMBEL_BLOCK, peaks + last);
    return flags;
}

void cpu_stage_piece(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z)
{
    const gumbel_problem *p = job->problem;
    const cpu_stage *stage = job->stage;
    float inverse_temperature = cpu_stage_temperature(p, piece->b);
    cpu_piece left = *piece;
    const float *v = piece->from;
    GUMBEL_ASSERT(piece->low < piece->high && piece->b < p->batch);
    GUMBEL_ASSERT(stage->values || stage->in_place);
    if (stage->raw)
        weigh_raw(job, slot, &left, z);
    if (!stays_in_place(job, piece->b, inverse_temperature)) {
        float *to =
            stage->values + piece->b * stage->stride + (piece->token + piece->low - p->first_token);
        cpu_transform_piece(job, &left, inverse_temperature, to);
        v = to;
    }
    slot->summaries[piece->b * p->sampling.num_samples].flags |= survey_piece(job, piece, v);
}

/* Whether the shard's ends cut the first and the last block of a row. */
static int first_is_cut(const cpu_job *job)
{
    return job->stage->blocks > 0 && job->problem->first_token > job->first_tile;
}

static int last_is_cut(const cpu_job *job)
{
    int own = job->stage->blocks > first_is_cut(job);
    return own && job->problem->end_token % GUMBEL_BLOCK != 0;
}

const float *cpu_stage_block(const cpu_job *job, int64_t b, int64_t block)
{
    const cpu_stage *stage = job->stage;
    const float *ends = stage->ends + b * 2 * GUMBEL_BLOCK;
    GUMBEL_ASSERT(b >= 0 && b < job->problem->batch);
    GUMBEL_ASSERT(block >= 0 && block < stage->blocks);
    if (block == 0 && first_is_cut(job))
        return ends;
    if (block == stage->blocks - 1 && last_is_cut(job))
        return ends + GUMBEL_BLOCK;
    return row_start(job, b) +
           (block * GUMBEL_BLOCK - (job->problem->first_token - job->first_tile));
}

cpu_values cpu_stage_values(const cpu_job *job, int64_t b)
{
    const cpu_stage *stage = job->stage;
    float *peaks = stage->peaks + b * stage->peak_room;
    float *tops = stage->tops + b * (stage->peak_room / GUMBEL_BLOCK);
    int64_t first = first_is_cut(job), last = stage->blocks - last_is_cut(job);
    GUMBEL_ASSERT(first <= last);
    GUMBEL_ASSERT(stage->peaks && stage->tops);
    cpu_values values = {.blocks = stage->blocks, .largest = -INFINITY, .scale = 1.0f};
    for (int64_t k = stage->blocks; k < stage->peak_room; k++)
        peaks[k] = -INFINITY;
    values.peaks = (cpu_stretch){peaks, tops, stage->peak_room / GUMBEL_BLOCK, 1};
    job->device->kernels->survey(peaks, values.peaks.blocks, tops);
    for (int64_t k = 0; k < values.peaks.blocks; k++)
        values.largest = tops[k] > values.largest ? tops[k] : values.largest;
    if (first > 0)
        values.stretch[values.stretches++] = (cpu_stretch){cpu_stage_block(job, b, 0), peaks, 1, 1};
    if (last > first)
        values.stretch[values.stretches++] =
            (cpu_stretch){cpu_stage_block(job, b, first), peaks + first, last - first, 1};
    if (last < stage->blocks)
        values.stretch[values.stretches++] =
            (cpu_stretch){cpu_stage_block(job, b, last), peaks + last, 1, 1};
    GUMBEL_ASSERT(values.stretches <= 3);
    GUMBEL_ASSERT(stage->blocks == 0 || values.stretches > 0);
    return values;
}
