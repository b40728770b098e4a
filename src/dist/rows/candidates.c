/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws that a few tokens of each rank tell. Exchange 1: the first tokens of each rank's rows, and
 * summaries of rows that nothing cuts. All ranks then have the head of each row, and find the same
 * cuts in it. Exchange 2, where a rule weighs more than a head, or a token's rank or logit is asked
 * for that may lie outside: a mass and some numbers of each rank. Exchange 3: rows of which a head
 * does not tell the cut are gathered whole. Every rank decides alike, by what all have.
 */
#include "dist/rows/candidates.h"

#include "core/fail.h"

/* Tokens that a rank lists of a row: beside those that are sure to be needed some more, which tell
 * that none of equal value is missing; and where nobody says how many, this many. */
#define SPARE_TOKENS 14
#define USUAL_TOKENS 128
#define MOST_TOKENS  1024

/* How many tokens a rank lists of each row: enough for lists, and for every top_k. */
static void count_tokens(ranks_candidates *c, int32_t num_top)
{
    const gumbel_problem *p = c->draw->p;
    int64_t most = num_top, spare = num_top > 0 ? SPARE_TOKENS : 0;
    c->uncut = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        if (!ranks_row_is_truncated(c, b, &rules)) {
            c->uncut++;
            continue;
        }
        int64_t own = rules.top_k > 0 ? rules.top_k : USUAL_TOKENS;
        most = own > most ? own : most;
        spare = SPARE_TOKENS;
    }
    most = (most + spare + 1) / 2 * 2;
    most = most < c->draw->group->rows_most ? most : (c->draw->group->rows_most + 1) / 2 * 2;
    c->most = (int32_t)(most < MOST_TOKENS ? most : MOST_TOKENS);
}

static void carve(ranks_candidates *c, gumbel_cursor *cursor, int counting)
{
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples;
    size_t ranks = (size_t)c->draw->group->transport.ranks;
    ranks_message none;
    if (counting) { /* rows' parameters are not read before the call, nor is num_top known */
        int64_t often = p->request & GUMBEL_REQUEST_TRUNCATION ? MOST_TOKENS
                                                               : GUMBEL_TOP_MOST + SPARE_TOKENS + 2;
        int64_t shard = (c->draw->group->rows_most + 1) / 2 * 2;
        c->most = (int32_t)(often < shard ? often : shard);
        c->uncut = p->batch;
    }
    size_t most = (size_t)c->most;
    c->bytes = ranks_carve_message(c, NULL, &none);
    c->summaries = gumbel_carve(cursor, batch, samples, sizeof *c->summaries);
    c->raw = gumbel_carve(cursor, batch, 1, sizeof *c->raw);
    c->sent = gumbel_carve(cursor, c->bytes, 1, 1);
    c->received = gumbel_carve(cursor, ranks, c->bytes, 1);
    c->rest = gumbel_carve(cursor, ranks, c->bytes, 1);
    c->sent_more = gumbel_carve(cursor, batch, ranks_extra_bytes(c), 1);
    c->received_more = gumbel_carve(cursor, ranks * batch, ranks_extra_bytes(c), 1);
    c->listed = gumbel_carve(cursor, ranks, most, sizeof *c->listed);
    c->sorted = gumbel_carve(cursor, ranks, most, sizeof *c->sorted);
    c->room = gumbel_carve(cursor, ranks, most, sizeof *c->room);
    c->heap = gumbel_carve(cursor, most, 1, sizeof *c->heap);
    c->left = gumbel_carve(cursor, batch, 1, sizeof *c->left);
    c->needy = gumbel_carve(cursor, batch, 1, sizeof *c->needy);
    c->row = gumbel_carve(cursor, samples, 1, sizeof *c->row);
}

/* ------------------------------------------------------------------- this rank's part ---- */

/* Summaries of this rank's rows, by y and by the logits as they are. */
static gumbel_status summarise(const ranks_candidates *c, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    gumbel_device *device = c->draw->group->device;
    gumbel_summaries_clear(c->summaries, p->batch * p->sampling.num_samples);
    gumbel_summaries_clear(c->raw, p->batch);
    if (ranks_own_shard(c->draw->group)->rows == 0)
        return GUMBEL_OK;
    if (c->uncut > 0) {
        gumbel_problem q = ranks_shard_problem(&c->rows, c->rows.y);
        GUMBEL_FORWARD(device->backend->partial(device, &q, c->summaries, c->draw->local, error));
    }
    if (p->request & GUMBEL_REQUEST_RAW) {
        gumbel_problem q = ranks_shard_problem(&c->rows, c->rows.logits);
        q.first_row = 0;
        q.position_by_row = 0;
        q.sampling = (gumbel_sampling){.num_samples = 1};
        GUMBEL_FORWARD(device->backend->partial(device, &q, c->raw, c->draw->local, error));
    }
    return GUMBEL_OK;
}

/* The ranks_message of exchange 1. */
static void write_message(const ranks_candidates *c)
{
    const gumbel_problem *p = c->draw->p;
    const ranks_shard *own = ranks_own_shard(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    int64_t uncut = 0;
    ranks_message m;
    memset(c->sent, 0, c->bytes);
    ranks_carve_message(c, c->sent, &m);
#define OF(field) ((void *)(uintptr_t)(field))
    if (p->request & GUMBEL_REQUEST_RAW)
        memcpy(OF(m.raw), c->raw, (size_t)p->batch * sizeof *c->raw);
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        ranks_row_report *note = (ranks_row_report *)OF(&m.notes[b]);
        ranks_token *tokens = (ranks_token *)OF(m.tokens + b * c->most);
        const float *y = c->rows.y + b * p->vocab;
        if (!ranks_row_is_truncated(c, b, &rules))
            memcpy((gumbel_summary *)OF(m.summaries) + uncut++ * samples,
                   c->summaries + b * samples, (size_t)samples * sizeof *c->summaries);
        if (own->rows == 0)
            continue;
        note->flags = y[0] != y[0] ? GUMBEL_FLAG_NAN : 0;
        note->listed =
            ranks_select_leading(y, p->vocab, p->first_token, ranks_row_scale(&c->whole, b), c->most,
                             c->heap, tokens, &note->finite, &note->more, &note->flags);
        float *logits = (float *)OF(m.logits + b * c->most);
        for (int32_t i = 0; i < note->listed && c->rows.raw; i++)
            logits[i] = c->rows.logits[b * p->vocab + (tokens[i].id - p->first_token)];
    }
#undef OF
}

/* This rank's part of exchange 2 for a row. */
static void write_more(const ranks_candidates *c, const ranks_merged_row *row, unsigned char *to)
{
    const gumbel_problem *p = c->draw->p;
    const ranks_shard *own = ranks_own_shard(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    ranks_scale scale = ranks_row_scale(&c->whole, row->b);
    ranks_row_extra *more = (ranks_row_extra *)(void *)to;
    int32_t *above = (int32_t *)(void *)(more + 1);
    float *logits = (float *)(void *)(above + samples);
    const float *y = c->rows.y + row->b * p->vocab;
    if (row->cut && own->rows > 0) {
        gumbel_wide mass = ranks_sum_masses(y, own->rows, scale.value, row->bound, row->head.at[0].value);
        more->mass[0] = (uint64_t)(mass >> 64);
        more->mass[1] = (uint64_t)mass;
    }
    for (int32_t s = 0; s < samples && !row->cut; s++) {
        int64_t at = row->best[s].best_id - own->first_token;
        for (int64_t i = 0; i < own->rows && c->draw->output->ranks; i++)
            above[s] += y[i] * scale.z > row->best[s].best_z;
        if (c->rows.raw && at >= 0 && at < own->rows)
            logits[s] = c->rows.logits[row->b * p->vocab + at];
    }
}

/* Exchange 2, if any row has a need: how many do, or an error in *status. */
static int64_t ask_more(const ranks_candidates *c, gumbel_status *status, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    int64_t needy = 0, uncut = 0;
    size_t each = ranks_extra_bytes(c);
    for (int64_t b = 0; b < p->batch; b++) {
        ranks_merged_row row = ranks_merge_row(c, b, uncut);
        uncut += !row.cut;
        if (!row.needs)
            continue;
        unsigned char *to = c->sent_more + (size_t)needy * each;
        memset(to, 0, each);
        write_more(c, &row, to);
        c->needy[needy++] = b;
    }
    *status = GUMBEL_OK;
    if (needy > 0)
        *status = ranks_gather(c->draw->group, c->sent_more, c->received_more, (size_t)needy * each,
                              error);
    return needy;
}

gumbel_status ranks_draw_candidates(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_problem *p = draw->p;
    ranks_candidates c = {.draw = draw, .whole = *p};
    gumbel_status status;
    c.whole.vocab = draw->group->end_token - draw->group->first_token;
    c.rows = ranks_carve_whole_rows(draw, cursor);
    if (draw->output)
        count_tokens(&c, draw->output->num_top);
    carve(&c, cursor, draw->output == NULL);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = draw->group->end_token;
        GUMBEL_FORWARD(ranks_count_whole_rows(&c.rows, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(ranks_make_shard_rows(&c.rows, error));
    GUMBEL_FORWARD(summarise(&c, error));
    write_message(&c);
    GUMBEL_FORWARD(ranks_begin_exchange(draw, c.sent, c.received, c.bytes, c.rest, error));
    ranks_merged_extra more = {.c = &c};
    more.needy = ask_more(&c, &status, error);
    GUMBEL_FORWARD(status);
    int64_t uncut = 0, left = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        ranks_merged_row row = ranks_merge_row(&c, b, uncut);
        uncut += !row.cut;
        more.mass = 0;
        for (int32_t r = 0; r < draw->group->transport.ranks && row.needs; r++) {
            const ranks_row_extra *of = ranks_extra_of(&more, r);
            more.mass += (gumbel_wide)of->mass[0] << 64 | of->mass[1];
        }
        if (!ranks_write_row(&c, &row, &more))
            c.left[left++] = b;
        more.place += row.needs;
    }
    return left > 0 ? ranks_draw_gathered_rows(&c.rows, c.left, left, error) : GUMBEL_OK;
}
