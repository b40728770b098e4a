/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws that a few tokens of each rank tell. Exchange 1: the first tokens of each rank's rows, and
 * summaries of rows that nothing cuts. All ranks then have the head of each row, and find the same
 * cuts in it. Exchange 2, where a rule weighs more than a head, or a token's rank or logit is asked
 * for that may lie outside: a mass and some numbers of each rank. Exchange 3: rows of which a head
 * does not tell the cut are gathered whole. Every rank decides alike, by what all have.
 */
#include "dist/rows.h"

#include "core/fail.h"
#include "core/output.h"
#include "dist/head.h"
#include "maths/summary.h"

/* Tokens that a rank lists of a row: beside those that are sure to be needed some more, which tell
 * that none of equal value is missing; and where nobody says how many, this many. */
#define SPARE_TOKENS 14
#define USUAL_TOKENS 128
#define MOST_TOKENS  1024

/* What a rank says of a row beside its tokens. */
typedef struct row_note {
    uint32_t flags;
    int32_t listed, more;
    int32_t finite; /* tokens with a z above -inf */
} row_note;

/* What a rank says of a row in exchange 2; S numbers of each kind follow. */
typedef struct row_more {
    uint64_t mass[2];
} row_more;

typedef struct candidates {
    dist_draw *draw;
    dist_rows rows;
    gumbel_problem whole;            /* as rows' parameters see it */
    int32_t most;                    /* tokens that a rank lists of a row */
    int64_t uncut;                   /* rows that nothing cuts */
    size_t bytes;                    /* of exchange 1 */
    gumbel_summary *summaries, *raw; /* [B, S] and [B] of this rank */
    unsigned char *sent, *received, *rest;
    unsigned char *sent_more, *received_more;
    dist_entry *listed, *sorted, *room; /* [R * most] */
    dist_entry *heap;                   /* [most] */
    int64_t *left;                      /* [B] rows for exchange 3 */
    int64_t *needy;                     /* [B] rows of exchange 2 */
    gumbel_summary *row;                /* [S] */
} candidates;

/* Where parts of a rank's message of exchange 1 lie. */
typedef struct message {
    const gumbel_summary *raw;       /* [B] where raw logits are weighed */
    const gumbel_summary *summaries; /* [uncut, S] */
    const row_note *notes;           /* [B] */
    const dist_token *tokens;        /* [B, most] */
    const float *logits;             /* [B, most] where logits as they are count */
} message;

static size_t message_of(const candidates *c, const unsigned char *at, message *m)
{
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples, used = 0;
#define PART(field, there, count)                                                                  \
    m->field = (const void *)(at + used);                                                          \
    used += (there) ? (count) * sizeof *m->field : 0
    PART(raw, p->request & GUMBEL_REQUEST_RAW, batch);
    PART(summaries, 1, (size_t)c->uncut * samples);
    PART(notes, 1, batch);
    PART(tokens, 1, batch * (size_t)c->most);
    PART(logits, c->rows.raw, batch * (size_t)c->most);
#undef PART
    return used;
}

static size_t more_bytes(const candidates *c)
{
    size_t each = sizeof(int32_t) + sizeof(float);
    size_t numbers = (size_t)c->draw->p->sampling.num_samples * each;
    return sizeof(row_more) + (numbers + 7) / 8 * 8;
}

static int row_is_cut(const candidates *c, int64_t b, gumbel_rules *rules)
{
    gumbel_row row = gumbel_problem_row(&c->whole, b);
    *rules = gumbel_problem_rules(&c->whole, b, row.greedy);
    return gumbel_rules_cut(rules);
}

/* How many tokens a rank lists of each row: enough for lists, and for every top_k. */
static void count_tokens(candidates *c, int32_t num_top)
{
    const gumbel_problem *p = c->draw->p;
    int64_t most = num_top, spare = num_top > 0 ? SPARE_TOKENS : 0;
    c->uncut = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        if (!row_is_cut(c, b, &rules)) {
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

static void carve(candidates *c, gumbel_cursor *cursor, int counting)
{
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples;
    size_t ranks = (size_t)c->draw->group->transport.ranks;
    message none;
    if (counting) { /* rows' parameters are not read before the call */
        c->most = MOST_TOKENS;
        c->uncut = p->batch;
    }
    size_t most = (size_t)c->most;
    c->bytes = message_of(c, NULL, &none);
    c->summaries = gumbel_carve(cursor, batch, samples, sizeof *c->summaries);
    c->raw = gumbel_carve(cursor, batch, 1, sizeof *c->raw);
    c->sent = gumbel_carve(cursor, c->bytes, 1, 1);
    c->received = gumbel_carve(cursor, ranks, c->bytes, 1);
    c->rest = gumbel_carve(cursor, ranks, c->bytes, 1);
    c->sent_more = gumbel_carve(cursor, batch, more_bytes(c), 1);
    c->received_more = gumbel_carve(cursor, ranks * batch, more_bytes(c), 1);
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
static gumbel_status summarise(const candidates *c, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    gumbel_device *device = c->draw->group->device;
    gumbel_summaries_clear(c->summaries, p->batch * p->sampling.num_samples);
    gumbel_summaries_clear(c->raw, p->batch);
    if (dist_own(c->draw->group)->rows == 0)
        return GUMBEL_OK;
    if (c->uncut > 0) {
        gumbel_problem q = dist_rows_problem(&c->rows, c->rows.y);
        GUMBEL_FORWARD(device->backend->partial(device, &q, c->summaries, c->draw->local, error));
    }
    if (p->request & GUMBEL_REQUEST_RAW) {
        gumbel_problem q = dist_rows_problem(&c->rows, c->rows.logits);
        q.first_row = 0;
        q.position_by_row = 0;
        q.sampling = (gumbel_sampling){.num_samples = 1};
        GUMBEL_FORWARD(device->backend->partial(device, &q, c->raw, c->draw->local, error));
    }
    return GUMBEL_OK;
}

/* The message of exchange 1. */
static void write_message(const candidates *c)
{
    const gumbel_problem *p = c->draw->p;
    const dist_shard *own = dist_own(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    int64_t uncut = 0;
    message m;
    memset(c->sent, 0, c->bytes);
    message_of(c, c->sent, &m);
#define OF(field) ((void *)(uintptr_t)(field))
    if (p->request & GUMBEL_REQUEST_RAW)
        memcpy(OF(m.raw), c->raw, (size_t)p->batch * sizeof *c->raw);
    for (int64_t b = 0; b < p->batch; b++) {
        gumbel_rules rules;
        row_note *note = (row_note *)OF(&m.notes[b]);
        dist_token *tokens = (dist_token *)OF(m.tokens + b * c->most);
        const float *y = c->rows.y + b * p->vocab;
        if (!row_is_cut(c, b, &rules))
            memcpy((gumbel_summary *)OF(m.summaries) + uncut++ * samples,
                   c->summaries + b * samples, (size_t)samples * sizeof *c->summaries);
        if (own->rows == 0)
            continue;
        note->flags = y[0] != y[0] ? GUMBEL_FLAG_NAN : 0;
        note->listed =
            dist_list_tokens(y, p->vocab, p->first_token, dist_scale_of(&c->whole, b), c->most,
                             c->heap, tokens, &note->finite, &note->more, &note->flags);
        float *logits = (float *)OF(m.logits + b * c->most);
        for (int32_t i = 0; i < note->listed && c->rows.raw; i++)
            logits[i] = c->rows.logits[b * p->vocab + (tokens[i].id - p->first_token)];
    }
#undef OF
}

/* ------------------------------------------------------------------------ what all say ---- */

/* A row by what all ranks said of it. */
typedef struct known_row {
    int64_t b;
    int cut; /* whether rules cut it */
    gumbel_rules rules;
    uint32_t flags;
    int64_t finite;
    dist_head head;
    int32_t kept;         /* of the head, where it is cut; -1: unknown */
    gumbel_summary *best; /* [S] */
    gumbel_row_status status;
    int needs; /* whether exchange 2 has something of it */
    float bound;
} known_row;

/* Read row b of all messages; `uncut` is how many rows before it nothing cuts. */
static known_row read_row(const candidates *c, int64_t b, int64_t uncut)
{
    const gumbel_group *group = c->draw->group;
    const gumbel_output *out = c->draw->output;
    int32_t ranks = group->transport.ranks, samples = c->whole.sampling.num_samples;
    known_row row = {.b = b, .head.at = c->listed, .best = c->row};
    row.cut = row_is_cut(c, b, &row.rules);
    row.flags = gumbel_problem_row_flags(&c->whole, b);
    gumbel_summaries_clear(row.best, samples);
    int32_t count = 0;
    dist_scale scale = dist_scale_of(&c->whole, b);
    dist_head_begin(&row.head);
    for (int32_t r = 0; r < ranks; r++) {
        message m;
        message_of(c, c->received + (size_t)r * c->bytes, &m);
        const row_note *note = &m.notes[b];
        row.flags |= note->flags;
        row.finite += note->finite;
        dist_head_add(&row.head, &count, m.tokens + b * c->most, note->listed, note->more,
                      r * c->most, scale);
        if (!row.cut)
            gumbel_summaries_merge(row.best, m.summaries + uncut * samples, samples);
    }
    dist_head_end(&row.head, count);
    for (int32_t s = 0; s < samples; s++)
        row.best[s].flags |= row.flags;
    int empty = row.head.count == 0 && row.head.complete;
    row.status = gumbel_summary_status(row.best);
    if (row.cut && row.status == GUMBEL_ROW_EMPTY && !empty)
        row.status = GUMBEL_ROW_OK; /* it is drawn once it is cut */
    row.needs = row.status == GUMBEL_ROW_OK && row.cut && row.head.count > 0 &&
                dist_needs_mass(&row.rules, row.head.at[0].value, &row.bound);
    if (row.status == GUMBEL_ROW_OK && !row.cut)
        row.needs = out->ranks || (c->rows.raw && out->logprobs && out->logprobs_of == GUMBEL_RAW);
    return row;
}

/* This rank's part of exchange 2 for a row. */
static void write_more(const candidates *c, const known_row *row, unsigned char *to)
{
    const gumbel_problem *p = c->draw->p;
    const dist_shard *own = dist_own(c->draw->group);
    int32_t samples = p->sampling.num_samples;
    dist_scale scale = dist_scale_of(&c->whole, row->b);
    row_more *more = (row_more *)(void *)to;
    int32_t *above = (int32_t *)(void *)(more + 1);
    float *logits = (float *)(void *)(above + samples);
    const float *y = c->rows.y + row->b * p->vocab;
    if (row->cut && own->rows > 0) {
        gumbel_wide mass = dist_weigh(y, own->rows, scale.value, row->bound, row->head.at[0].value);
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

/* What all ranks say in exchange 2: a mass, and of each sample a count and a logit. */
typedef struct known_more {
    gumbel_wide mass;
    const candidates *c;
    int64_t place; /* among needy rows */
    int64_t needy; /* how many there are */
} known_more;

static const row_more *more_of(const known_more *k, int32_t rank)
{
    size_t each = more_bytes(k->c);
    return (const void *)(k->c->received_more +
                          ((size_t)rank * (size_t)k->needy + (size_t)k->place) * each);
}

static int32_t rank_of(const known_more *k, int32_t s)
{
    int32_t above = 0;
    for (int32_t r = 0; r < k->c->draw->group->transport.ranks; r++)
        above += ((const int32_t *)(more_of(k, r) + 1))[s];
    return above + 1;
}

static float logit_of(const known_more *k, int32_t s, int32_t id)
{
    const gumbel_group *group = k->c->draw->group;
    int32_t samples = k->c->whole.sampling.num_samples, r = 0;
    while (id < group->shards[r].first_token ||
           id >= group->shards[r].first_token + group->shards[r].rows)
        r++;
    return ((const float *)((const int32_t *)(more_of(k, r) + 1) + samples))[s];
}

/* ------------------------------------------------------------------------- the outputs ---- */

/* The logit as it is of a token of the head. */
static float listed_logit(const candidates *c, const known_row *row, const dist_entry *e)
{
    message m;
    message_of(c, c->received + (size_t)(e->from / c->most) * c->bytes, &m);
    return m.logits[row->b * c->most + e->from % c->most];
}

/* A token's place in the head; -1 where it is not in it. */
static int32_t find(const dist_head *head, int32_t id)
{
    for (int32_t i = 0; i < head->count; i++)
        if (head->at[i].id == id)
            return i;
    return -1;
}

static float raw_normaliser(const candidates *c, const known_row *row)
{
    gumbel_summary raw;
    gumbel_summary_empty(&raw);
    for (int32_t r = 0; r < c->draw->group->transport.ranks; r++) {
        message m;
        message_of(c, c->received + (size_t)r * c->bytes, &m);
        gumbel_summary_merge_any(&raw, &m.raw[row->b]);
    }
    return raw.flags ? NAN : gumbel_summary_lse(&raw);
}

/* Sort a head by z, lower ids first among equals: rules before the temperature have another order.
 * 0 where one that is not in the head may belong to its first `n`. */
static int sort_by_z(dist_head *head, int32_t n, dist_entry *into)
{
    memcpy(into, head->at, (size_t)head->count * sizeof *into);
    for (int32_t i = 1; i < head->count; i++) {
        dist_entry e = into[i];
        int32_t at = i;
        for (; at > 0 && into[at - 1].z == e.z && into[at - 1].id > e.id; at--)
            into[at] = into[at - 1];
        into[at] = e;
    }
    if (head->complete)
        return 1;
    if (n > head->count)
        return 0;
    /* Values and z differ: an unlisted token may have the z of the last listed one. */
    float last = into[head->count - 1].z;
    int same = into[head->count - 1].value == last;
    return n == 0 || same || into[n - 1].z > last;
}

static void write_list(const candidates *c, const known_row *row, const dist_entry *sorted,
                       float lse)
{
    const gumbel_output *out = c->draw->output;
    int ok = row->status == GUMBEL_ROW_OK, raw = out->logprobs_of == GUMBEL_RAW;
    for (int32_t i = 0; i < out->num_top; i++) {
        int64_t at = row->b * out->num_top + i;
        const dist_entry *e = &sorted[i];
        int there = ok && i < row->head.count && e->z > -INFINITY;
        float logprob = ok ? -INFINITY : NAN, logit = logprob;
        int stays = there && (!row->cut || find(&row->head, e->id) < row->kept);
        if (there && (raw || stays) && out->top_logprobs)
            logprob = gumbel_logprob(raw ? listed_logit(c, row, e) : e->z, lse);
        if (there && out->top_logits)
            logit = listed_logit(c, row, e);
        if (out->top_ids)
            out->top_ids[at] = there ? e->id : -1;
        if (out->top_logprobs)
            out->top_logprobs[at] = logprob;
        if (out->top_logits)
            out->top_logits[at] = logit;
    }
}

/* The best scores of a row that is cut: all its tokens are in the head. */
static void write_best(const candidates *c, const known_row *row)
{
    const gumbel_output *out = c->draw->output;
    int32_t n = out->num_best, count = 0;
    gumbel_row drawn = gumbel_problem_row(&c->whole, row->b);
    dist_entry best[GUMBEL_BEST_MOST];
    for (int32_t i = 0; i < row->kept && row->status == GUMBEL_ROW_OK; i++) {
        dist_entry e = row->head.at[i];
        if (!(e.z > -INFINITY))
            continue;
        e.value = e.z + gumbel_of_token(drawn.stream, (uint32_t)e.id);
        int32_t at = count < n ? count++ : n;
        for (; at > 0 && (best[at - 1].value < e.value ||
                          (best[at - 1].value == e.value && best[at - 1].id > e.id));
             at--)
            if (at < n)
                best[at] = best[at - 1];
        if (at < n)
            best[at] = e;
    }
    for (int32_t i = 0; i < n; i++) {
        float none = row->status == GUMBEL_ROW_OK ? -INFINITY : NAN;
        if (out->best_ids)
            out->best_ids[row->b * n + i] = i < count ? best[i].id : -1;
        if (out->best_scores)
            out->best_scores[row->b * n + i] = i < count ? best[i].value : none;
    }
}

static void write_samples(const candidates *c, const known_row *row, const known_more *more,
                          float lse)
{
    const gumbel_output *out = c->draw->output;
    int32_t samples = c->whole.sampling.num_samples;
    for (int32_t s = 0; s < samples; s++) {
        const gumbel_summary *best = &row->best[s];
        int64_t at = row->b * samples + s;
        int ok = row->status == GUMBEL_ROW_OK && best->best_id >= 0;
        int32_t place = ok && row->cut ? find(&row->head, best->best_id) : -1, above = 0;
        float z = best->best_z;
        while (place >= 0 && row->head.at[above].z > z)
            above++;
        if (ok && out->logprobs_of == GUMBEL_RAW && out->logprobs)
            z = row->cut ? listed_logit(c, row, &row->head.at[place])
                         : logit_of(more, s, best->best_id);
        out->tokens[at] = ok ? best->best_id : -1;
        if (out->logprobs)
            out->logprobs[at] = ok ? gumbel_logprob(z, lse) : NAN;
        if (out->scores)
            out->scores[at] = ok ? best->best_score : NAN;
        if (out->ranks)
            out->ranks[at] = !ok ? -1 : row->cut ? above + 1 : rank_of(more, s);
    }
}

/* Draw and write a row; 0 where its head does not tell it. */
static int write_row(const candidates *c, known_row *row, const known_more *more)
{
    const gumbel_output *out = c->draw->output;
    const gumbel_group *group = c->draw->group;
    int raw = out->logprobs_of == GUMBEL_RAW, weighed = !raw && (out->lse || out->logprobs);
    int listed = out->num_top > 0 && (out->top_ids || out->top_logprobs || out->top_logits);
    int64_t kept = row->finite;
    weighed |= !raw && listed && out->top_logprobs;
    if (row->status == GUMBEL_ROW_OK) {
        if (!row->cut && ((weighed && !group->aligned) || out->num_best > 0))
            return 0;
        if (listed && !sort_by_z(&row->head, out->num_top, c->sorted))
            return 0;
        if (row->cut && row->head.count == 0)
            return 0;
        if (row->cut) {
            row->kept = dist_cut_head(&row->rules, &row->head, more->mass);
            if (row->kept < 0)
                return 0;
            gumbel_summaries_clear(row->best, c->whole.sampling.num_samples);
            dist_draw_head(&c->whole, row->b, &row->head, row->kept, c->room, row->best);
            row->status = gumbel_summary_status(row->best);
            kept = 0;
            for (int32_t i = 0; i < row->kept; i++)
                kept += row->head.at[i].z > -INFINITY;
        }
    }
    int ok = row->status == GUMBEL_ROW_OK;
    float lse = NAN;
    if (ok && raw && (out->lse || out->logprobs || out->top_logprobs))
        lse = raw_normaliser(c, row);
    if (ok && !raw)
        lse = gumbel_summary_lse(row->best);
    write_samples(c, row, more, lse);
    if (listed)
        write_list(c, row, c->sorted, lse);
    if (out->num_best > 0)
        write_best(c, row);
    if (out->lse)
        out->lse[row->b] = lse;
    if (out->status)
        out->status[row->b] = (int32_t)row->status;
    if (out->kept)
        out->kept[row->b] = ok ? (int32_t)kept : 0;
    return 1;
}

/* Exchange 2, if any row has a need: how many do, or an error in *status. */
static int64_t ask_more(const candidates *c, gumbel_status *status, gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    int64_t needy = 0, uncut = 0;
    size_t each = more_bytes(c);
    for (int64_t b = 0; b < p->batch; b++) {
        known_row row = read_row(c, b, uncut);
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
        *status = dist_gather(c->draw->group, c->sent_more, c->received_more, (size_t)needy * each,
                              error);
    return needy;
}

gumbel_status dist_draw_candidates(dist_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_problem *p = draw->p;
    candidates c = {.draw = draw, .whole = *p};
    gumbel_status status;
    c.whole.vocab = draw->group->end_token - draw->group->first_token;
    c.rows = dist_rows_of(draw, cursor);
    if (draw->output)
        count_tokens(&c, draw->output->num_top);
    carve(&c, cursor, draw->output == NULL);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = draw->group->end_token;
        GUMBEL_FORWARD(dist_rows_count(&c.rows, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(dist_rows_make(&c.rows, error));
    GUMBEL_FORWARD(summarise(&c, error));
    write_message(&c);
    GUMBEL_FORWARD(dist_begin(draw, c.sent, c.received, c.bytes, c.rest, error));
    known_more more = {.c = &c};
    more.needy = ask_more(&c, &status, error);
    GUMBEL_FORWARD(status);
    int64_t uncut = 0, left = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        known_row row = read_row(&c, b, uncut);
        uncut += !row.cut;
        more.mass = 0;
        for (int32_t r = 0; r < draw->group->transport.ranks && row.needs; r++) {
            const row_more *of = more_of(&more, r);
            more.mass += (gumbel_wide)of->mass[0] << 64 | of->mass[1];
        }
        if (!write_row(&c, &row, &more))
            c.left[left++] = b;
        more.place += row.needs;
    }
    return left > 0 ? dist_rows_serve(&c.rows, c.left, left, error) : GUMBEL_OK;
}
