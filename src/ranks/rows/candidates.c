/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from the leading tokens of each rank, in up to three exchanges.
 *
 *   1. The leading tokens of each rank's rows, and summaries of rows without truncation. All ranks
 *      then have the leading tokens of the whole, and find the same kept set among them.
 *   2. If top_p requires the mass of other tokens, or the rank or logit of a token that may be
 *      another one is requested: a mass, counts and logits of each rank.
 *   3. Fallback rows, which their leading tokens do not determine, are gathered whole.
 *
 * All ranks decide alike, by data that all of them have.
 */
#include "ranks/rows/candidates.h"

#include "core/fail.h"

/* Tokens that a rank sends of a row: top_k or num_top, and spare tokens, by which ranks detect
 * whether one of equal value is missing. The default applies to rows without top_k. */
#define SPARE_TOKENS   14
#define DEFAULT_TOKENS 128
#define TOKENS_MAX     1024

/* Sets how many tokens a rank sends of each row: enough for num_top and for every top_k. */
static void set_tokens_max(ranks_candidates *c, int32_t num_top)
{
    const gumbel_problem *p = c->draw->p;
    int64_t max_tokens = num_top, spare = num_top > 0 ? SPARE_TOKENS : 0;
    c->untruncated = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        if (!ranks_row_is_truncated(c, b, &rules)) {
            c->untruncated++;
            continue;
        }
        int64_t own = rules.top_k > 0 ? rules.top_k : DEFAULT_TOKENS;
        max_tokens = own > max_tokens ? own : max_tokens;
        spare = SPARE_TOKENS;
    }
    max_tokens = (max_tokens + spare + 1) / 2 * 2;
    max_tokens =
        max_tokens < c->draw->group->rows_max ? max_tokens : (c->draw->group->rows_max + 1) / 2 * 2;
    c->tokens_max = (int32_t)(max_tokens < TOKENS_MAX ? max_tokens : TOKENS_MAX);
}

static void carve_candidates(ranks_candidates *c, gumbel_cursor *cursor, int counting)
{
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples;
    size_t ranks = (size_t)c->draw->group->transport.ranks;
    ranks_message none;
    if (counting) { /* neither parameters of rows nor num_top are known before the call */
        int64_t often = p->features & GUMBEL_FEATURE_TRUNCATION ? TOKENS_MAX
                                                                : GUMBEL_TOP_MAX + SPARE_TOKENS + 2;
        int64_t shard = (c->draw->group->rows_max + 1) / 2 * 2;
        c->tokens_max = (int32_t)(often < shard ? often : shard);
        c->untruncated = p->batch;
    }
    size_t tokens_max = (size_t)c->tokens_max;
    c->bytes = ranks_carve_message(c, NULL, &none);
    c->summaries = gumbel_carve_array(cursor, batch, samples, sizeof *c->summaries);
    c->raw = gumbel_carve_array(cursor, batch, 1, sizeof *c->raw);
    c->sent = gumbel_carve_array(cursor, c->bytes, 1, 1);
    c->received = gumbel_carve_array(cursor, ranks, c->bytes, 1);
    c->rest = gumbel_carve_array(cursor, ranks, c->bytes, 1);
    c->sent_masses = gumbel_carve_array(cursor, batch, ranks_count_masses_bytes(c), 1);
    c->received_masses = gumbel_carve_array(cursor, ranks * batch, ranks_count_masses_bytes(c), 1);
    c->listed = gumbel_carve_array(cursor, ranks, tokens_max, sizeof *c->listed);
    c->sorted = gumbel_carve_array(cursor, ranks, tokens_max, sizeof *c->sorted);
    c->room = gumbel_carve_array(cursor, ranks, tokens_max, sizeof *c->room);
    c->heap = gumbel_carve_array(cursor, tokens_max, 1, sizeof *c->heap);
    c->fallback = gumbel_carve_array(cursor, batch, 1, sizeof *c->fallback);
    c->mass_rows = gumbel_carve_array(cursor, batch, 1, sizeof *c->mass_rows);
    c->row = gumbel_carve_array(cursor, samples, 1, sizeof *c->row);
}

/* ------------------------------------------------------------------------- messages sent ---- */

/* Summarises this rank's rows, by y and by the unmodified logits. */
static gumbel_status summarise_rows(const ranks_candidates *c, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    gumbel_device *device = c->draw->group->device;
    gumbel_summaries_clear(c->summaries, p->batch * p->sampling.num_samples);
    gumbel_summaries_clear(c->raw, p->batch);
    if (ranks_own_shard(c->draw->group)->rows == 0)
        return GUMBEL_OK;
    if (c->untruncated > 0) {
        gumbel_problem q = ranks_shard_problem(&c->rows, c->rows.y);
        GUMBEL_FORWARD(
            device->backend->draw_partial(device, &q, NULL, c->summaries, c->draw->local, error));
    }
    if (p->features & GUMBEL_FEATURE_RAW) {
        gumbel_problem q = ranks_shard_problem(&c->rows, c->rows.logits);
        q.first_row = 0;
        q.position_by_row = 0;
        q.sampling = (gumbel_sampling){.num_samples = 1};
        GUMBEL_FORWARD(
            device->backend->draw_partial(device, &q, NULL, c->raw, c->draw->local, error));
    }
    return GUMBEL_OK;
}

/* Writes this rank's message of exchange 1. */
static void write_message(const ranks_candidates *c)
{
    const gumbel_problem *p = c->draw->p;
    const ranks_shard *own = ranks_own_shard(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    int64_t untruncated = 0;
    ranks_message m;
    memset(c->sent, 0, c->bytes);
    ranks_carve_message(c, c->sent, &m);
#define OF(field) ((void *)(uintptr_t)(field))
    if (p->features & GUMBEL_FEATURE_RAW)
        memcpy(OF(m.raw), c->raw, (size_t)p->batch * sizeof *c->raw);
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        ranks_row_report *report = (ranks_row_report *)OF(&m.reports[b]);
        ranks_token *tokens = (ranks_token *)OF(m.tokens + b * c->tokens_max);
        const float *y = c->rows.y + b * p->vocab;
        if (!ranks_row_is_truncated(c, b, &rules))
            memcpy((gumbel_summary *)OF(m.summaries) + untruncated++ * samples,
                   c->summaries + b * samples, (size_t)samples * sizeof *c->summaries);
        if (own->rows == 0)
            continue;
        report->flags = y[0] != y[0] ? GUMBEL_FLAG_NAN : 0;
        report->listed = ranks_select_leading(
            y, p->vocab, p->first_token, ranks_row_scale(&c->whole, b), c->tokens_max, c->heap,
            tokens, &report->finite, &report->more, &report->flags);
        float *logits = (float *)OF(m.logits + b * c->tokens_max);
        for (int32_t i = 0; i < report->listed && c->rows.raw; i++)
            logits[i] = c->rows.logits[b * p->vocab + (tokens[i].id - p->first_token)];
    }
#undef OF
}

/* Writes a row of this rank's message of exchange 2. */
static void write_row_masses(const ranks_candidates *c, const ranks_merged_row *row,
                             unsigned char *to)
{
    const gumbel_problem *p = c->draw->p;
    const ranks_shard *own = ranks_own_shard(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    ranks_scale scale = ranks_row_scale(&c->whole, row->b);
    ranks_row_masses *masses = (ranks_row_masses *)(void *)to;
    int32_t *above = (int32_t *)(void *)(masses + 1);
    float *logits = (float *)(void *)(above + samples);
    const float *y = c->rows.y + row->b * p->vocab;
    if (row->truncated && own->rows > 0) {
        gumbel_wide mass =
            ranks_sum_masses(y, own->rows, scale.value, row->bound, row->leading.at[0].value);
        masses->mass[0] = (uint64_t)(mass >> 64);
        masses->mass[1] = (uint64_t)mass;
    }
    for (int32_t s = 0; s < samples && !row->truncated; s++) {
        int64_t at = row->best[s].best_id - own->first_token;
        for (int64_t i = 0; i < own->rows && c->draw->output->ranks; i++)
            above[s] += y[i] * scale.z > row->best[s].best_z;
        if (c->rows.raw && at >= 0 && at < own->rows)
            logits[s] = c->rows.logits[row->b * p->vocab + at];
    }
}

/* Makes exchange 2, if any row takes part; returns how many do, and an error in *status. */
static int64_t exchange_masses(const ranks_candidates *c, gumbel_status *status,
                               gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    int64_t rows = 0, untruncated = 0;
    size_t each = ranks_count_masses_bytes(c);
    for (int64_t b = 0; b < p->batch; b++) {
        ranks_merged_row row = ranks_merge_row(c, b, untruncated);
        untruncated += !row.truncated;
        if (!row.requires_masses)
            continue;
        unsigned char *to = c->sent_masses + (size_t)rows * each;
        memset(to, 0, each);
        write_row_masses(c, &row, to);
        c->mass_rows[rows++] = b;
    }
    *status = GUMBEL_OK;
    if (rows > 0)
        *status = ranks_gather(c->draw->group, c->sent_masses, c->received_masses,
                               (size_t)rows * each, error);
    return rows;
}

gumbel_status ranks_draw_candidates(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_problem *p = draw->p;
    ranks_candidates c = {.draw = draw, .whole = *p};
    gumbel_status status;
    c.whole.vocab = draw->group->end_token - draw->group->first_token;
    c.rows = ranks_carve_whole_rows(draw, cursor);
    if (draw->output)
        set_tokens_max(&c, draw->output->num_top);
    carve_candidates(&c, cursor, draw->output == NULL);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = draw->group->end_token;
        GUMBEL_FORWARD(ranks_count_whole_rows(&c.rows, &local, error));
        gumbel_carve_array(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(ranks_make_shard_rows(&c.rows, error));
    GUMBEL_FORWARD(summarise_rows(&c, error));
    write_message(&c);
    GUMBEL_FORWARD(ranks_begin_exchange(draw, c.sent, c.received, c.bytes, c.rest, error));
    ranks_merged_masses masses = {.c = &c};
    masses.rows = exchange_masses(&c, &status, error);
    GUMBEL_FORWARD(status);
    int64_t untruncated = 0, fallback = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        ranks_merged_row row = ranks_merge_row(&c, b, untruncated);
        untruncated += !row.truncated;
        masses.mass = 0;
        for (int32_t r = 0; r < draw->group->transport.ranks && row.requires_masses; r++) {
            const ranks_row_masses *of = ranks_get_row_masses(&masses, r);
            masses.mass += (gumbel_wide)of->mass[0] << 64 | of->mass[1];
        }
        if (!ranks_write_row(&c, &row, &masses))
            c.fallback[fallback++] = b;
        masses.place += row.requires_masses;
    }
    return fallback > 0 ? ranks_draw_gathered_rows(&c.rows, c.fallback, fallback, error)
                        : GUMBEL_OK;
}
