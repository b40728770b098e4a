/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request's rows say: their cut before the draw, their outputs after it.
 */
#include "cpu/rows/cpu_request.h"

#include "core/fail.h"
#include "core/output.h"
#include "cpu/lanes/cpu_widen.h"
#include "cpu/rows/cpu_truncate.h"

/* ----------------------------------------------------------------------------- the cut ---- */

/* The global id below which exactly `tied` tokens of row b have the value `bound`. */
static int64_t find_tied_end(const cpu_request *r, int64_t b, float bound, int64_t tied)
{
    const float *peaks = r->stage.peaks + b * r->stage.peak_room;
    if (tied == GUMBEL_TIES_ALL_KEPT)
        return INT64_MAX;
    GUMBEL_ASSERT(tied >= 0);
    for (int64_t block = 0; block < r->stage.blocks; block++) {
        const float *v = cpu_stage_block(&r->job, b, block);
        for (int i = 0; i < GUMBEL_BLOCK && peaks[block] >= bound; i++)
            if (v[i] == bound && tied-- == 0)
                return r->job.first_tile + block * GUMBEL_BLOCK + i;
    }
    return INT64_MAX;
}

static int64_t count_kept(const cpu_request *r, int64_t b)
{
    float z[GUMBEL_BLOCK];
    int64_t kept = 0;
    for (int64_t block = 0; block < r->stage.blocks; block++)
        if (cpu_request_survives(r, b, block))
            kept += cpu_request_block(r, b, block, z);
    return kept;
}

uint32_t cpu_request_flags(const cpu_request *r, int64_t b)
{
    uint32_t flags = 0;
    for (int32_t i = 0; i < r->staged; i++)
        flags |= cpu_job_slot(&r->job, i).summaries[b * r->problem.sampling.num_samples].flags;
    return flags;
}

void cpu_request_cut(cpu_request *r, int64_t b)
{
    const gumbel_problem *p = &r->problem;
    cpu_weight bins[CPU_BINS];
    cpu_found *found = &r->rows[b];
    gumbel_row row = gumbel_problem_row(p, b);
    gumbel_rules rules = gumbel_problem_rules(p, b, row.greedy);
    GUMBEL_ASSERT(b >= 0 && b < p->batch);
    *found = (cpu_found){.scale = cpu_stage_scale(p, b), .bound = -FLT_MAX, .tied_end = INT64_MAX};
    found->flags = cpu_request_flags(r, b);
    if (found->flags)
        return;
    cpu_values values = cpu_stage_values(&r->job, b);
    if (values.largest * found->scale == INFINITY)
        found->flags = GUMBEL_FLAG_INFINITE;
    found->empty = !(values.largest * found->scale > -INFINITY);
    if (found->flags || found->empty)
        return;
    if (gumbel_rules_truncate(&rules)) {
        gumbel_cutoff cut = cpu_find_cut(r->job.device->kernels, &values, &rules, bins);
        GUMBEL_ASSERT(cut.bound <= values.largest * found->scale || found->scale != 1.0f);
        found->bound = cut.bound;
        found->tied_end = find_tied_end(r, b, cut.bound, cut.tied);
    }
    if (r->output && r->output->kept)
        found->kept = count_kept(r, b);
}

int cpu_request_survives(const cpu_request *r, int64_t b, int64_t block)
{
    return r->stage.peaks[b * r->stage.peak_room + block] >= r->rows[b].bound;
}

int cpu_request_block(const cpu_request *r, int64_t b, int64_t block, float *out)
{
    const cpu_found *found = &r->rows[b];
    const float *v = cpu_stage_block(&r->job, b, block);
    int64_t token = r->job.first_tile + block * GUMBEL_BLOCK, left = found->tied_end - token;
    int kept = r->job.device->kernels->keep(v, found->scale, found->bound, out);
    GUMBEL_ASSERT(kept >= 0 && kept <= GUMBEL_BLOCK);
    for (int64_t i = left > 0 ? left : 0; i < GUMBEL_BLOCK; i++)
        if (v[i] == found->bound) {
            kept -= out[i] > -INFINITY;
            out[i] = -INFINITY;
        }
    return kept;
}

/* ------------------------------------------------------------------------- the outputs ---- */

/* The value of a token of row b. */
static float value_of(const cpu_request *r, int64_t b, int64_t token)
{
    int64_t at = token - r->job.first_tile;
    GUMBEL_ASSERT(at >= 0 && at / GUMBEL_BLOCK < r->stage.blocks);
    return cpu_stage_block(&r->job, b, at / GUMBEL_BLOCK)[at % GUMBEL_BLOCK];
}

/* The logit of a token of row b as it is: read again, or multiplied again, with the same bits. */
static float raw_logit(const cpu_request *r, int32_t thread, int64_t b, int64_t token)
{
    const gumbel_problem *p = &r->problem;
    int64_t at = token - p->first_token;
    GUMBEL_ASSERT(at >= 0 && at < p->vocab);
    if (p->hidden_size == 0)
        return cpu_widen_element(p->logits.data, p->logits.dtype, b * p->logits.stride + at);
    int64_t stride = p->weight.stride * cpu_element_size(p->weight.dtype);
    float *hidden = r->hidden + thread * cpu_rounded_up(p->hidden_size, CPU_CHUNK);
    cpu_job_unpack(&r->job, b, hidden);
    cpu_slot slot = cpu_job_slot(&r->job, thread);
    cpu_product product = {.weight = (const char *)p->weight.data + at * stride,
                           .dtype = p->weight.dtype,
                           .stride_bytes = stride,
                           .hidden_size = p->hidden_size,
                           .count = 1,
                           .panels = hidden,
                           .batch = 1,
                           .lanes = slot.lanes,
                           .out_stride = r->job.tile + CPU_LANES,
                           .out = slot.z};
    r->job.device->kernels->product(&product);
    float bias = p->bias.data ? cpu_widen_element(p->bias.data, p->bias.dtype, at) : 0.0f;
    return p->bias.data ? slot.z[0] + bias : slot.z[0];
}

/* A row that is being read out. */
typedef struct reading {
    cpu_request *request;
    int32_t thread;
    int64_t b;
    cpu_values values; /* with their scale */
    float lse;         /* of the distribution that is asked for */
} reading;

/* The log-probability of a token that is not removed, in the distribution that is asked for. */
static float logprob_of(const reading *in, int64_t token, float z)
{
    if (in->request->output->logprobs_of == GUMBEL_RAW)
        z = raw_logit(in->request, in->thread, in->b, token);
    return gumbel_logprob(z, in->lse);
}

static float log_normaliser(const cpu_request *r, int64_t b)
{
    if (r->output->logprobs_of == GUMBEL_PROCESSED)
        return gumbel_summary_lse(&r->summaries[b * r->problem.sampling.num_samples]);
    gumbel_summary raw;
    if (!r->stage.raw)
        return NAN;
    gumbel_summary_empty(&raw);
    for (int32_t i = 0; i < r->staged; i++)
        gumbel_summary_merge(&raw, &r->stage.raw[i * r->problem.batch + b]);
    return raw.flags ? NAN : gumbel_summary_lse(&raw);
}

/* A token of a list. */
typedef struct listed {
    float z;
    int32_t id;
} listed;

/* The `most` tokens with the largest z, then lower id, that have any; how many there are. */
static int32_t list_tokens(const reading *in, int32_t most, listed *list)
{
    const cpu_request *r = in->request;
    const float *peaks = r->stage.peaks + in->b * r->stage.peak_room;
    float scale = in->values.scale;
    cpu_weight bins[CPU_BINS];
    cpu_landing last = cpu_nth_largest(r->job.device->kernels, &in->values, most, -FLT_MAX, bins);
    float bound = last.reached ? last.value : -FLT_MAX;
    int64_t tied = last.reached ? most - (int64_t)last.above : INT64_MAX;
    int32_t count = 0;
    for (int64_t block = 0; block < r->stage.blocks; block++) {
        if (peaks[block] * scale < bound)
            continue;
        const float *v = cpu_stage_block(&r->job, in->b, block);
        for (int32_t i = 0; i < GUMBEL_BLOCK; i++) {
            float z = v[i] * scale;
            if (!(z > bound || (z == bound && tied-- > 0)))
                continue;
            int32_t at = count++;
            GUMBEL_ASSERT(count <= most);
            for (; at > 0 && list[at - 1].z < z; at--)
                list[at] = list[at - 1];
            list[at] = (listed){z, (int32_t)(r->job.first_tile + block * GUMBEL_BLOCK + i)};
        }
    }
    return count;
}

static int is_kept(const cpu_request *r, int64_t b, int64_t token)
{
    const cpu_found *found = &r->rows[b];
    float v = value_of(r, b, token);
    return v > found->bound || (v == found->bound && token < found->tied_end);
}

static void read_list(const reading *in, int ok)
{
    const gumbel_output *out = in->request->output;
    listed list[GUMBEL_TOP_MOST];
    GUMBEL_ASSERT(out->num_top >= 1 && out->num_top <= GUMBEL_TOP_MOST);
    int32_t n = out->num_top, count = ok ? list_tokens(in, n, list) : 0;
    int raw = out->logprobs_of == GUMBEL_RAW;
    for (int32_t i = 0; i < n; i++) {
        int64_t at = in->b * n + i;
        float logprob = ok ? -INFINITY : NAN, logit = logprob;
        if (i < count && out->top_logprobs && (raw || is_kept(in->request, in->b, list[i].id)))
            logprob = logprob_of(in, list[i].id, list[i].z);
        if (i < count && out->top_logits)
            logit = raw_logit(in->request, in->thread, in->b, list[i].id);
        if (out->top_ids)
            out->top_ids[at] = i < count ? list[i].id : -1;
        if (out->top_logprobs)
            out->top_logprobs[at] = logprob;
        if (out->top_logits)
            out->top_logits[at] = logit;
    }
}

/* 1 + how many tokens have a larger z. */
static int32_t rank_of(const reading *in, float z)
{
    int64_t above = 0;
    for (int i = 0; i < in->values.stretches; i++)
        above += in->request->job.device->kernels->count_above(&in->values.stretch[i],
                                                               in->values.scale, z);
    GUMBEL_ASSERT(above >= 0 && above < in->request->problem.vocab);
    return (int32_t)(above + 1);
}

/* What a draw would say of a token that is given. */
static void read_given(const reading *in, int64_t id, int64_t at)
{
    const cpu_request *r = in->request;
    const gumbel_problem *p = &r->problem;
    const gumbel_output *out = r->output;
    int counts = id >= p->first_token && id < p->end_token;
    float z = counts ? value_of(r, in->b, id) * in->values.scale : -INFINITY;
    int drawable = counts && z > -INFINITY && is_kept(r, in->b, id);
    int weighs = out->logprobs_of == GUMBEL_RAW ? counts : drawable;
    out->tokens[at] = (int32_t)id;
    if (out->logprobs)
        out->logprobs[at] = weighs ? logprob_of(in, id, z) : -INFINITY;
    if (out->scores)
        out->scores[at] = drawable ? z : -INFINITY;
    if (out->ranks)
        out->ranks[at] = z > -INFINITY ? rank_of(in, z) : -1;
}

static void read_sample(const reading *in, const gumbel_summary *s, int64_t at, int ok)
{
    const gumbel_output *out = in->request->output;
    out->tokens[at] = ok ? s->best_id : -1;
    if (out->logprobs)
        out->logprobs[at] = ok ? logprob_of(in, s->best_id, s->best_z) : NAN;
    if (out->scores)
        out->scores[at] = ok ? s->best_score : NAN;
    if (out->ranks)
        out->ranks[at] = ok ? rank_of(in, s->best_z) : -1;
}

void cpu_request_read(cpu_request *r, int32_t thread, int64_t b)
{
    const gumbel_output *out = r->output;
    int32_t samples = r->problem.sampling.num_samples;
    gumbel_summary *row = r->summaries + b * samples;
    GUMBEL_ASSERT(b >= 0 && b < r->problem.batch);
    const gumbel_row_i32 *given = &r->problem.sampling.given;
    row->flags |= r->rows[b].flags;
    if (given->data && !r->rows[b].empty)
        row->best_id = 0; /* it is not that nothing can be drawn */
    gumbel_row_status status = gumbel_summary_status(row);
    int ok = status == GUMBEL_ROW_OK;
    GUMBEL_ASSERT(!ok || given->data || row->best_id >= r->problem.first_token);
    GUMBEL_ASSERT(!ok || given->data || row->best_id < r->problem.end_token);
    reading in = {.request = r, .thread = thread, .b = b, .lse = NAN};
    if (ok) {
        in.values = cpu_stage_values(&r->job, b);
        in.values.scale = r->rows[b].scale;
        in.lse = log_normaliser(r, b);
    }
    for (int32_t s = 0; s < samples; s++) {
        int64_t id = given->data ? given->data[(r->problem.first_row + b) * given->stride + s] : -1;
        if (ok && id >= 0)
            read_given(&in, id, b * samples + s);
        else
            read_sample(&in, &row[s], b * samples + s, ok && !given->data);
    }
    if (out->num_top > 0)
        read_list(&in, ok);
    if (gumbel_output_has_best(out))
        cpu_request_best(r, b, ok);
    if (out->lse)
        out->lse[b] = in.lse;
    if (out->status)
        out->status[b] = (int32_t)status;
    if (out->kept)
        out->kept[b] = ok ? (int32_t)r->rows[b].kept : 0;
}
