/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on CPUs by whole rows. Every rank writes its processed logits y, which its own masks,
 * histories and lists have edited. The ranks gather a slice of the batch at a time, and the rank's
 * device draws from it as from logits: by (2) of gumbel.h with y for l, to the bit. Unmodified
 * logits travel beside y if an output requires them; their log-normaliser is that of given tokens.
 */
#include "ranks/rows/whole_rows.h"

#include "core/fail.h"
#include "core/output.h"
#include "maths/summary.h"

/* Bytes of all ranks' rows in one exchange, unless one row takes more. */
#define SLICE_BYTES (INT64_C(64) << 20)

/* Rows [first, first + count) of the batch, which begin at row `at` of a slice. */
typedef struct row_run {
    int64_t first, count, at;
} row_run;

/* The problem whose y is written. */
static gumbel_problem drop_draw(const gumbel_problem *p)
{
    gumbel_problem q = *p;
    q.features &= GUMBEL_FEATURE_TRANSFORMS;
    q.sampling.temperature = (gumbel_row_f32){0};
    q.sampling.given = (gumbel_row_i32){0};
    q.sampling.noise = NULL;
    q.sampling.noise_stride = 0;
    q.sampling.num_samples = 1;
    q.with_mass = 0;
    return q;
}

/* The problem whose unmodified logits are written. */
static gumbel_problem drop_edits(const gumbel_problem *p)
{
    gumbel_problem q = drop_draw(p);
    q.features = 0;
    q.with_path = 0;
    q.scale = 1.0f;
    q.soft_cap = 0.0f;
    q.end_token = q.first_token + q.vocab;
    return q;
}

/* A run of rows of the whole, from `logits` [count, V]. */
static gumbel_problem view_gathered(const ranks_whole_rows *c, row_run run, const float *logits)
{
    const gumbel_group *group = c->draw->group;
    gumbel_problem w = *c->draw->p;
    w.vocab = c->vocab;
    w.hidden_size = 0;
    w.hidden = w.weight = w.bias = (gumbel_tensor){0};
    w.logits = (gumbel_tensor){
        .dtype = GUMBEL_FLOAT32, .rows = w.batch, .cols = c->vocab, .stride = c->vocab};
    w.scale = 1.0f;
    w.soft_cap = 0.0f;
    w.first_token = group->first_token;
    w.end_token = c->draw->end_token;
    w.with_path = 0;
    w.sampling.noise = NULL;
    w.sampling.noise_stride = 0;
    w = gumbel_problem_slice(&w, run.first, run.count);
    w.logits.data = logits;
    return w;
}

/* The problem that draws a run of rows. */
static gumbel_problem plan_draw(const ranks_whole_rows *c, row_run run, uint32_t outputs)
{
    gumbel_problem w = view_gathered(c, run, c->whole ? c->whole + run.at * c->vocab : NULL);
    w.features &= GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PROGRAM | GUMBEL_FEATURE_GIVEN;
    w.features |= outputs;
    w.with_mass = 1;
    if (c->noise) {
        int64_t at = (1 + c->raw) * c->slice + run.at * w.sampling.num_samples;
        w.sampling.noise = c->whole ? c->whole + at * c->vocab : NULL;
        w.sampling.noise_stride = c->vocab;
    }
    return w;
}

/* The problem whose log-normaliser and, with GUMBEL_FEATURE_ENTROPY in `outputs`, entropy are those
 * of the unmodified logits. Its given tokens replace a draw. */
static gumbel_problem plan_raw_outputs(const ranks_whole_rows *c, row_run run, uint32_t outputs)
{
    static const int32_t none = -1;
    const float *raw = c->whole ? c->whole + (c->slice + run.at) * c->vocab : NULL;
    gumbel_problem w = view_gathered(c, run, raw);
    w.first_row = 0;
    w.features = GUMBEL_FEATURE_GIVEN | GUMBEL_FEATURE_RAW | outputs;
    w.sampling = (gumbel_sampling){.num_samples = 1, .given = {&none, 0}};
    w.position_by_row = w.mask_by_row = 0;
    w.list_of_row = NULL;
    w.with_mass = 1;
    return w;
}

gumbel_status ranks_count_whole_rows(const ranks_whole_rows *c, size_t *max_bytes,
                                     gumbel_error *error)
{
    const row_run all = {0, c->slice, 0};
    const gumbel_group *group = c->draw->group;
    const gumbel_problem *p = c->draw->p;
    gumbel_problem q = drop_draw(p);
    const uint32_t outputs = GUMBEL_FEATURE_RANKS | GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_BEST |
                             (p->features & (GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_ENTROPY));
    if (ranks_own_shard(group)->rows > 0) {
        GUMBEL_FORWARD(ranks_count_call(group, &q, GUMBEL_CAPABILITY_ROWS, max_bytes, error));
        GUMBEL_FORWARD(ranks_count_call(group, &q, GUMBEL_CAPABILITY_SUMMARIES, max_bytes, error));
        q = drop_edits(p);
        GUMBEL_FORWARD(ranks_count_call(group, &q, GUMBEL_CAPABILITY_ROWS, max_bytes, error));
    }
    q = plan_draw(c, all, (p->features & outputs) | GUMBEL_FEATURE_TOP);
    GUMBEL_FORWARD(ranks_count_call(group, &q, 0, max_bytes, error));
    if (!c->raw)
        return GUMBEL_OK;
    q = plan_raw_outputs(c, all, p->features & GUMBEL_FEATURE_ENTROPY);
    return ranks_count_call(group, &q, 0, max_bytes, error);
}

static void carve_rows(ranks_whole_rows *c, gumbel_cursor *cursor)
{
    const gumbel_group *group = c->draw->group;
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, own = (size_t)ranks_own_shard(group)->rows,
           size = sizeof(float);
    size_t rows_max = (size_t)group->rows_max, ranks = (size_t)group->transport.ranks;
    size_t slice = (size_t)c->slice;
    size_t moving = (size_t)c->kinds * slice;
    c->y = gumbel_carve_array(cursor, batch, own, size);
    c->logits = gumbel_carve_array(cursor, c->raw ? batch : 0, own, size);
    c->sent = gumbel_carve_array(cursor, moving, rows_max, size);
    c->received = gumbel_carve_array(cursor, ranks * moving, rows_max, size);
    c->whole = gumbel_carve_array(cursor, moving, (size_t)c->vocab, size);
    c->tokens = gumbel_carve_array(cursor, slice, 1, size);
    c->top_ids = gumbel_carve_array(cursor, slice, GUMBEL_TOP_MAX, size);
    c->status = gumbel_carve_array(cursor, slice, 1, size);
    c->lse = gumbel_carve_array(cursor, slice, 1, size);
}

gumbel_status ranks_make_shard_rows(const ranks_whole_rows *c, gumbel_error *error)
{
    const ranks_draw *draw = c->draw;
    gumbel_device *device = draw->group->device;
    gumbel_problem q = drop_draw(draw->p);
    const int64_t vocab = q.vocab;
    if (ranks_own_shard(draw->group)->rows == 0)
        return GUMBEL_OK;
    const gumbel_row_array y = {c->y, GUMBEL_FLOAT32, vocab};
    GUMBEL_FORWARD(device->backend->store_processed(device, &q, NULL, y, draw->local, error));
    for (int64_t b = 0; b < q.batch; b++) {
        gumbel_summary found;
        float *row = c->y + b * vocab;
        if (row[0] == row[0])
            continue;
        gumbel_problem one = gumbel_problem_slice(&q, b, 1);
        GUMBEL_FORWARD(
            device->backend->draw_partial(device, &one, NULL, &found, draw->local, error));
        for (int64_t i = 0; i < vocab && found.flags == GUMBEL_FLAG_INFINITE; i++)
            row[i] = INFINITY;
    }
    q = drop_edits(draw->p);
    return c->raw ? device->backend->store_logits(device, &q, c->logits, vocab, draw->local, error)
                  : GUMBEL_OK;
}

/* This rank's row of kind `kind`, for row b. */
static const float *find_own_row(const ranks_whole_rows *c, int64_t b, int64_t kind)
{
    const gumbel_problem *p = c->draw->p;
    if (kind == 0)
        return c->y + b * p->vocab;
    if (kind == 1 && c->raw)
        return c->logits + b * p->vocab;
    int64_t sample = kind - 1 - c->raw;
    return p->sampling.noise + (b * p->sampling.num_samples + sample) * p->sampling.noise_stride;
}

/* The place of a row of kind `kind` in a slice: noise is ordered by rows, then samples. */
static int64_t find_place(const ranks_whole_rows *c, int64_t kind, int64_t row)
{
    int64_t before = 1 + c->raw, samples = c->kinds - before;
    return kind < before ? kind * c->slice + row
                         : before * c->slice + row * samples + (kind - before);
}

/* Gathers `count` rows into whole rows. */
static gumbel_status gather_rows(const ranks_whole_rows *c, const int64_t *which, int64_t count,
                                 gumbel_error *error)
{
    gumbel_group *group = c->draw->group;
    int64_t rows_max = group->rows_max, moving = c->kinds * c->slice;
    int64_t own = ranks_own_shard(group)->rows;
    for (int64_t kind = 0; kind < c->kinds; kind++)
        for (int64_t b = 0; b < count; b++) {
            float *to = c->sent + find_place(c, kind, b) * rows_max;
            if (own > 0)
                memcpy(to, find_own_row(c, which[b], kind), (size_t)own * sizeof *to);
            memset(to + own, 0, (size_t)(rows_max - own) * sizeof *to);
        }
    GUMBEL_FORWARD(ranks_gather(group, c->sent, c->received,
                                (size_t)(moving * rows_max) * sizeof(float), error));
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        const ranks_shard *s = &group->shards[r];
        for (int64_t at = 0; at < moving && s->rows > 0; at++)
            memcpy(c->whole + at * c->vocab + (s->first_token - group->first_token),
                   c->received + (r * moving + at) * rows_max, (size_t)s->rows * sizeof(float));
    }
    return GUMBEL_OK;
}

/* The unmodified logit of a token of row b of a run. */
static float get_raw_logit(const ranks_whole_rows *c, row_run run, int64_t b, int32_t id)
{
    return c->whole[(c->slice + run.at + b) * c->vocab + (id - c->draw->group->first_token)];
}

/* The raw log-probability of a token; -inf for padding. */
static float compute_raw_logprob(const ranks_whole_rows *c, row_run run, int64_t b, int32_t id)
{
    if (id < c->draw->group->first_token || id >= c->draw->end_token)
        return -INFINITY;
    return gumbel_logprob(get_raw_logit(c, run, b, id), c->lse[b]);
}

/* Writes the outputs of the raw distribution that its log-normaliser determines, of row b of a run.
 */
static void write_raw_row(const ranks_whole_rows *c, row_run run, const gumbel_output *out,
                          const gumbel_output *drawn, int64_t b)
{
    const int32_t samples = c->draw->p->sampling.num_samples, n = out->num_top;
    const int ok = drawn->status[b] == GUMBEL_ROW_OK;
    for (int64_t at = b * samples; at < (b + 1) * samples && out->logprobs; at++) {
        const int32_t id = drawn->tokens[at];
        out->logprobs[at] = ok && id >= 0 ? compute_raw_logprob(c, run, b, id) : NAN;
    }
    for (int64_t at = b * n; at < (b + 1) * n && out->top_logprobs; at++) {
        const int32_t id = drawn->top_ids[at];
        out->top_logprobs[at] = !ok ? NAN : id < 0 ? -INFINITY : compute_raw_logprob(c, run, b, id);
    }
    if (ok && out->kept_logprobs && out->kept[b] <= out->kept_capacity)
        for (int32_t i = 0; i < out->kept[b]; i++) {
            const int64_t at = b * out->kept_capacity + i;
            out->kept_logprobs[at] = compute_raw_logprob(c, run, b, out->kept_ids[at]);
        }
    if (out->lse)
        out->lse[b] = ok ? c->lse[b] : NAN;
    if (out->entropy && !ok)
        out->entropy[b] = NAN;
}

/* Writes the outputs of the raw distribution, of a run that is drawn. */
static gumbel_status write_raw_outputs(const ranks_whole_rows *c, row_run run,
                                       const gumbel_output *out, const gumbel_output *drawn,
                                       gumbel_error *error)
{
    gumbel_device *device = c->draw->group->device;
    const gumbel_output of_raw = {.struct_size = sizeof of_raw,
                                  .tokens = c->tokens,
                                  .lse = c->lse,
                                  .entropy = out->entropy,
                                  .logprobs_of = GUMBEL_RAW};
    gumbel_problem w = plan_raw_outputs(c, run, out->entropy ? GUMBEL_FEATURE_ENTROPY : 0);
    GUMBEL_FORWARD(device->backend->sample(device, &w, NULL, &of_raw, c->draw->local, error));
    for (int64_t b = 0; b < run.count; b++)
        write_raw_row(c, run, out, drawn, b);
    return GUMBEL_OK;
}

/* Writes the logits of the most likely tokens of a run that is drawn. */
static void write_top_logits(const ranks_whole_rows *c, row_run run, const gumbel_output *out,
                             const gumbel_output *drawn)
{
    const int32_t n = out->num_top;
    for (int64_t at = 0; at < run.count * n; at++) {
        const int32_t id = drawn->top_ids[at];
        out->top_logits[at] = drawn->status[at / n] != GUMBEL_ROW_OK ? NAN
                              : id < 0                               ? -INFINITY
                                       : get_raw_logit(c, run, at / n, id);
    }
}

static gumbel_status draw_run(const ranks_whole_rows *c, row_run run, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    gumbel_device *device = c->draw->group->device;
    gumbel_output out = gumbel_output_slice(c->draw->output, run.first, p->sampling.num_samples);
    gumbel_output drawn = out;
    drawn.top_logits = NULL;
    if (c->raw) {
        drawn.top_ids = out.top_ids ? out.top_ids : c->top_ids;
        drawn.status = out.status ? out.status : c->status;
    }
    if (out.logprobs_of == GUMBEL_RAW) {
        drawn.logprobs = drawn.lse = drawn.top_logprobs = drawn.kept_logprobs = NULL;
        drawn.entropy = NULL;
        drawn.logprobs_of = GUMBEL_PROCESSED;
    }
    uint32_t outputs = (out.ranks ? GUMBEL_FEATURE_RANKS : 0) |
                       (out.kept ? GUMBEL_FEATURE_KEPT : 0) |
                       (out.kept_ids ? GUMBEL_FEATURE_KEPT_IDS : 0) |
                       (drawn.entropy ? GUMBEL_FEATURE_ENTROPY : 0) |
                       (gumbel_output_has_best(&out) ? GUMBEL_FEATURE_BEST : 0);
    if (out.num_top > 0 && (drawn.top_ids || drawn.top_logprobs))
        outputs |= GUMBEL_FEATURE_TOP;
    gumbel_problem w = plan_draw(c, run, outputs);
    w.with_mass = gumbel_output_has_lse(&drawn);
    GUMBEL_FORWARD(device->backend->sample(device, &w, NULL, &drawn, c->draw->local, error));
    if (out.top_logits)
        write_top_logits(c, run, &out, &drawn);
    return c->draw->p->features & GUMBEL_FEATURE_RAW
               ? write_raw_outputs(c, run, &out, &drawn, error)
               : GUMBEL_OK;
}

gumbel_problem ranks_shard_problem(const ranks_whole_rows *c, const float *values)
{
    gumbel_problem q = *c->draw->p;
    q.hidden_size = 0;
    q.hidden = q.weight = q.bias = (gumbel_tensor){0};
    q.logits = (gumbel_tensor){values, GUMBEL_FLOAT32, q.batch, q.vocab, q.vocab, {0, 0}};
    q.scale = 1.0f;
    q.soft_cap = 0.0f;
    q.features = 0;
    q.with_path = 0;
    q.with_mass = 1;
    return q;
}

ranks_whole_rows ranks_carve_whole_rows(ranks_draw *draw, gumbel_cursor *cursor)
{
    const gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    ranks_whole_rows c = {.draw = draw,
                          .raw = (p->features & (GUMBEL_FEATURE_RAW | GUMBEL_FEATURE_LOGITS)) != 0,
                          .noise = p->sampling.noise != NULL,
                          .vocab = group->end_token - group->first_token};
    c.kinds = 1 + c.raw + (c.noise ? p->sampling.num_samples : 0);
    c.slice = SLICE_BYTES / (c.kinds * group->rows_max * group->transport.ranks * 4);
    c.slice = c.slice < 1 ? 1 : c.slice > p->batch ? p->batch : c.slice;
    carve_rows(&c, cursor);
    return c;
}

gumbel_status ranks_draw_gathered_rows(const ranks_whole_rows *c, const int64_t *which,
                                       int64_t count, gumbel_error *error)
{
    c->draw->group->traffic.rows_by_rows += count;
    for (int64_t done = 0; done < count; done += c->slice) {
        int64_t rows = count - done < c->slice ? count - done : c->slice;
        GUMBEL_FORWARD(gather_rows(c, which + done, rows, error));
        for (int64_t at = 0; at < rows;) {
            row_run run = {which[done + at], 1, at};
            while (at + run.count < rows && which[done + at + run.count] == run.first + run.count)
                run.count++;
            GUMBEL_FORWARD(draw_run(c, run, error));
            at += run.count;
        }
    }
    return GUMBEL_OK;
}

gumbel_status ranks_draw_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_problem *p = draw->p;
    ranks_whole_rows rows = ranks_carve_whole_rows(draw, cursor);
    int64_t *which = gumbel_carve_array(cursor, (size_t)p->batch, 1, sizeof *which);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = draw->group->end_token;
        GUMBEL_FORWARD(ranks_count_whole_rows(&rows, &local, error));
        gumbel_carve_array(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(ranks_make_shard_rows(&rows, error));
    GUMBEL_FORWARD(ranks_begin_exchange(draw, NULL, NULL, 0, NULL, error));
    for (int64_t b = 0; b < p->batch; b++)
        which[b] = b;
    return ranks_draw_gathered_rows(&rows, which, p->batch, error);
}
