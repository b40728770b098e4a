/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/rows/cpu_outputs.h"

#include "core/fail.h"
#include "core/output.h"
#include "cpu/lanes/cpu_widen.h"
#include "cpu/rows/cpu_truncate.h"

/* A row whose outputs are written. */
typedef struct output_row {
    cpu_rows_call *call;
    int32_t thread;
    int64_t b;
    cpu_values values; /* with their scale */
    float lse;         /* of the requested distribution */
} output_row;

/* The stored value of a token of row b. */
static float get_value(const cpu_rows_call *r, int64_t b, int64_t token)
{
    int64_t at = token - r->job.first_tile;
    GUMBEL_ASSERT(at >= 0 && at / GUMBEL_BLOCK < r->stage.blocks);
    if (r->stage.block_maxima[b * r->stage.maxima_stride + at / GUMBEL_BLOCK] == -INFINITY)
        return -INFINITY; /* a program does not clear the values of a block that it removes */
    return cpu_get_staged_block(&r->job, b, at / GUMBEL_BLOCK)[at % GUMBEL_BLOCK];
}

/* The raw logit of a token: read again, or multiplied again, with the same bits. */
static float compute_raw_logit(const output_row *row, int64_t token)
{
    const cpu_rows_call *r = row->call;
    const gumbel_problem *p = &r->problem;
    int64_t at = token - p->first_token;
    GUMBEL_ASSERT(at >= 0 && at < p->vocab);
    if (p->hidden_size == 0)
        return cpu_widen_element(p->logits.data, p->logits.dtype, row->b * p->logits.stride + at);
    float *hidden = r->hidden + row->thread * cpu_get_packed_size(p->hidden_size);
    cpu_scratch scratch = cpu_get_scratch(&r->job, row->thread);
    cpu_unpack_hidden_row(&r->job, row->b, hidden);
    float logit = cpu_multiply_row(&r->job, &scratch, at, hidden);
    return p->bias.data ? logit + cpu_widen_element(p->bias.data, p->bias.dtype, at) : logit;
}

/* The log-probability in the requested distribution of a token that has one. */
static float compute_logprob(const output_row *row, int64_t token, float z)
{
    if (row->call->output->logprobs_of == GUMBEL_RAW)
        z = compute_raw_logit(row, token);
    return gumbel_logprob(z, row->lse);
}

gumbel_summary cpu_merge_raw_summary(const cpu_rows_call *r, int64_t b)
{
    gumbel_summary raw;
    GUMBEL_ASSERT(r->stage.raw);
    gumbel_summary_empty(&raw);
    for (int32_t i = 0; i < r->staged; i++)
        gumbel_summary_merge(&raw, &r->stage.raw[i * r->problem.batch + b]);
    return raw;
}

static float compute_lse(const cpu_rows_call *r, int64_t b)
{
    if (r->output->logprobs_of == GUMBEL_PROCESSED)
        return gumbel_summary_lse(&r->summaries[b * r->problem.sampling.num_samples]);
    if (!r->stage.raw)
        return NAN;
    const gumbel_summary raw = cpu_merge_raw_summary(r, b);
    return raw.flags ? NAN : gumbel_summary_lse(&raw);
}

typedef struct top_token {
    float z;
    int32_t id;
} top_token;

/* Lists the `max_count` tokens with the largest z, ties by lower id; returns their number. */
static int32_t list_top_tokens(const output_row *row, int32_t max_count, top_token *list)
{
    const cpu_rows_call *r = row->call;
    const float *maxima = r->stage.block_maxima + row->b * r->stage.maxima_stride;
    float scale = row->values.scale;
    cpu_weight bins[CPU_BINS];
    cpu_selection last =
        cpu_select_nth_largest(r->job.device->kernels, &row->values, max_count, -FLT_MAX, bins);
    float bound = last.reached ? last.value : -FLT_MAX;
    int64_t tied = last.reached ? max_count - (int64_t)last.above : INT64_MAX;
    int32_t count = 0;
    for (int64_t block = 0; block < r->stage.blocks; block++) {
        if (maxima[block] * scale < bound)
            continue;
        const float *v = cpu_get_staged_block(&r->job, row->b, block);
        for (int32_t i = 0; i < GUMBEL_BLOCK; i++) {
            float z = v[i] * scale;
            if (!(z > bound || (z == bound && tied-- > 0)))
                continue;
            int32_t at = count++;
            GUMBEL_ASSERT(count <= max_count);
            for (; at > 0 && list[at - 1].z < z; at--)
                list[at] = list[at - 1];
            list[at] = (top_token){z, (int32_t)(r->job.first_tile + block * GUMBEL_BLOCK + i)};
        }
    }
    return count;
}

/* Whether a token survives the truncation of row b. */
static int is_kept(const cpu_rows_call *r, int64_t b, int64_t token)
{
    const cpu_row_truncation *own = &r->rows[b];
    float v = get_value(r, b, token);
    return v > own->bound || (v == own->bound && token < own->tied_end);
}

static void write_top_tokens(const output_row *row, int ok)
{
    const gumbel_output *out = row->call->output;
    top_token list[GUMBEL_TOP_MAX];
    GUMBEL_ASSERT(out->num_top >= 1 && out->num_top <= GUMBEL_TOP_MAX);
    int32_t n = out->num_top, count = ok ? list_top_tokens(row, n, list) : 0;
    int raw = out->logprobs_of == GUMBEL_RAW;
    for (int32_t i = 0; i < n; i++) {
        int64_t at = row->b * n + i;
        float logprob = ok ? -INFINITY : NAN, logit = logprob;
        if (i < count && out->top_logprobs && (raw || is_kept(row->call, row->b, list[i].id)))
            logprob = compute_logprob(row, list[i].id, list[i].z);
        if (i < count && out->top_logits)
            logit = compute_raw_logit(row, list[i].id);
        if (out->top_ids)
            out->top_ids[at] = i < count ? list[i].id : -1;
        if (out->top_logprobs)
            out->top_logprobs[at] = logprob;
        if (out->top_logits)
            out->top_logits[at] = logit;
    }
}

/* Writes the tokens that truncation keeps, which fit. */
static void write_kept_tokens(const output_row *row)
{
    const cpu_rows_call *r = row->call;
    const gumbel_output *out = r->output;
    const int64_t begin = row->b * out->kept_capacity;
    int64_t at = begin;
    float z[GUMBEL_BLOCK];
    for (int64_t block = 0; block < r->stage.blocks; block++) {
        if (!cpu_may_block_survive(r, row->b, block) ||
            cpu_load_kept_block(r, row->b, block, z) == 0)
            continue;
        for (int i = 0; i < GUMBEL_BLOCK; i++) {
            if (z[i] == -INFINITY)
                continue;
            const int64_t id = r->job.first_tile + block * GUMBEL_BLOCK + i;
            GUMBEL_ASSERT(at - begin < out->kept_capacity);
            out->kept_ids[at] = (int32_t)id;
            if (out->kept_logprobs)
                out->kept_logprobs[at] = compute_logprob(row, id, z[i]);
            at++;
        }
    }
    GUMBEL_ASSERT(at - begin == r->rows[row->b].kept);
}

/* 1 + the number of tokens with a larger z. */
static int32_t find_rank(const output_row *row, float z)
{
    int64_t above =
        cpu_count_row_above(row->call->job.device->kernels, &row->values, row->values.scale, z);
    GUMBEL_ASSERT(above >= 0 && above < row->call->problem.vocab);
    return (int32_t)(above + 1);
}

/* Writes the outputs that a draw of a given token would have. */
static void write_given_token(const output_row *row, int64_t id, int64_t at)
{
    const cpu_rows_call *r = row->call;
    const gumbel_problem *p = &r->problem;
    const gumbel_output *out = r->output;
    int counts = id >= p->first_token && id < p->end_token;
    float z = counts ? get_value(r, row->b, id) * row->values.scale : -INFINITY;
    int drawable = counts && z > -INFINITY && is_kept(r, row->b, id);
    int has_logprob = out->logprobs_of == GUMBEL_RAW ? counts : drawable;
    out->tokens[at] = (int32_t)id;
    if (out->logprobs)
        out->logprobs[at] = has_logprob ? compute_logprob(row, id, z) : -INFINITY;
    if (out->scores)
        out->scores[at] = drawable ? z : -INFINITY;
    if (out->ranks)
        out->ranks[at] = z > -INFINITY ? find_rank(row, z) : -1;
}

static void write_drawn_token(const output_row *row, const gumbel_summary *s, int64_t at, int ok)
{
    const gumbel_output *out = row->call->output;
    out->tokens[at] = ok ? s->best_id : -1;
    if (out->logprobs)
        out->logprobs[at] = ok ? compute_logprob(row, s->best_id, s->best_z) : NAN;
    if (out->scores)
        out->scores[at] = ok ? s->best_score : NAN;
    if (out->ranks)
        out->ranks[at] = ok ? find_rank(row, s->best_z) : -1;
}

void cpu_write_row_outputs(cpu_rows_call *r, int32_t thread, int64_t b)
{
    const gumbel_output *out = r->output;
    int32_t samples = r->problem.sampling.num_samples;
    gumbel_summary *drawn = r->summaries + b * samples;
    GUMBEL_ASSERT(b >= 0 && b < r->problem.batch);
    const gumbel_row_i32 *given = &r->problem.sampling.given;
    drawn->flags |= r->rows[b].flags;
    if (given->data && !r->rows[b].empty)
        drawn->best_id = 0; /* nothing was drawn, but the row is not empty */
    gumbel_row_status status = gumbel_summary_status(drawn);
    int ok = status == GUMBEL_ROW_OK;
    GUMBEL_ASSERT(!ok || given->data || drawn->best_id >= r->problem.first_token);
    GUMBEL_ASSERT(!ok || given->data || drawn->best_id < r->problem.end_token);
    output_row row = {.call = r, .thread = thread, .b = b, .lse = NAN};
    if (ok) {
        row.values = cpu_get_staged_values(&r->job, b);
        row.values.scale = r->rows[b].scale;
        row.lse = compute_lse(r, b);
    }
    for (int32_t s = 0; s < samples; s++) {
        int64_t id = given->data ? given->data[(r->problem.first_row + b) * given->stride + s] : -1;
        if (ok && id >= 0)
            write_given_token(&row, id, b * samples + s);
        else
            write_drawn_token(&row, &drawn[s], b * samples + s, ok && !given->data);
    }
    if (out->num_top > 0)
        write_top_tokens(&row, ok);
    if (gumbel_output_has_best(out))
        cpu_write_best_scores(r, b, ok);
    if (out->lse)
        out->lse[b] = row.lse;
    if (out->entropy)
        out->entropy[b] = ok ? cpu_compute_entropy(r, b) : NAN;
    if (out->status)
        out->status[b] = (int32_t)status;
    if (out->kept)
        out->kept[b] = ok ? (int32_t)r->rows[b].kept : 0;
    if (out->kept_ids && ok && r->rows[b].kept <= out->kept_capacity)
        write_kept_tokens(&row);
}
