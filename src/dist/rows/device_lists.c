/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on GPUs that the first tokens of each rank tell: they are listed, exchanged, cut and drawn
 * from on every rank alike. Rows that these do not tell, as one that nothing cuts, or a top_p of
 * all tokens, are chosen on the GPU, exchanged whole and drawn from; where there are none, a few
 * launches find that out. All of it is queued. Peers' mailboxes exchange what is chosen by
 * themselves; a transport's collectives take the same bytes always, so that these rows go on an
 * errand of the host's, for which the GPU waits.
 */
#include "dist/rows/device_rows.h"

#include "core/fail.h"

/* From so many rows on this is faster than whole rows, where there are no mailboxes: a row that
 * lists do not tell takes an errand. */
#define ROWS_LEAST 8

#define SERVED                                                                                     \
    ((uint32_t)(GUMBEL_REQUEST_TRUNCATION | GUMBEL_REQUEST_TRANSFORMS | GUMBEL_REQUEST_RANKS |     \
                GUMBEL_REQUEST_KEPT))

typedef struct device_lists {
    ranks_device_rows rows;
    uint32_t *said;   /* [words_of(B)] of this rank */
    uint32_t *heard;  /* the same of all */
    int32_t *left;    /* [B + 1]: 1 for rows that are drawn whole, and 0: CTAs that have ended */
    int32_t *list, *slots, *listed; /* which these are, their slots, how many */
    gumbel_output whole;            /* what is drawn of these, one behind the other */
} device_lists;

int ranks_can_list(const gumbel_group *group, const gumbel_problem *p)
{
    int peers = group->peers.ranks > 0;
    int cuts = p->truncation.top_k.data || p->truncation.min_p.data;
    for (int32_t r = 0; r < group->transport.ranks; r++)
        if (group->shards[r].rows < GUMBEL_RANK_TOP)
            return 0;
    return (peers || (group->errands.run && group->transport.ranks <= GUMBEL_PEERS_RANKS)) &&
           (p->request & GUMBEL_REQUEST_TRUNCATION) && !(p->request & ~SERVED) &&
           !p->sampling.noise && p->batch >= (peers && cuts ? 1 : ROWS_LEAST) &&
           p->batch <= GUMBEL_PEERS_CHOSEN_ROWS &&
           p->first_row == 0 && !p->position_by_row && !p->mask_by_row && !p->list_of_row &&
           !p->with_path;
}

/* Everything that a row may be asked for: what the outputs are is not known as this is counted. */
static gumbel_output carve_output(gumbel_cursor *cursor, const gumbel_output *wanted, size_t batch,
                                  size_t samples)
{
    gumbel_output out = {.struct_size = sizeof out};
    const gumbel_output all = wanted ? *wanted : out;
#define CARVE(field, each)                                                                         \
    out.field = gumbel_carve(cursor, batch, each, sizeof *out.field);                              \
    out.field = all.field ? out.field : NULL
    CARVE(tokens, samples);
    CARVE(logprobs, samples);
    CARVE(scores, samples);
    CARVE(ranks, samples);
    CARVE(lse, 1);
    CARVE(status, 1);
    CARVE(kept, 1);
#undef CARVE
    out.logprobs_of = all.logprobs_of;
    return out;
}

/* Words that a rank says of a batch, in whole 16 bytes. */
static int64_t words_of(int64_t batch) { return (batch * GUMBEL_RANK_WORDS + 3) / 4 * 4; }

static device_lists carve(ranks_draw *draw, gumbel_cursor *cursor)
{
    const gumbel_problem *p = draw->p;
    size_t batch = (size_t)p->batch, ranks = (size_t)draw->group->transport.ranks;
    device_lists d = {.rows = ranks_carve_device_rows(draw, cursor, p->batch)};
    size_t words = (size_t)words_of(p->batch);
    d.said = gumbel_carve(cursor, words, 1, sizeof *d.said);
    d.heard = gumbel_carve(cursor, ranks, words, sizeof *d.heard);
    d.left = gumbel_carve(cursor, batch + 1, 1, sizeof *d.left);
    d.list = gumbel_carve(cursor, batch, 1, sizeof *d.list);
    d.slots = gumbel_carve(cursor, batch, 1, sizeof *d.slots);
    d.listed = gumbel_carve(cursor, 1, 1, sizeof *d.listed);
    d.whole = carve_output(cursor, draw->output, batch, (size_t)p->sampling.num_samples);
    return d;
}

/* Whether tokens are listed as the product stores its logits, since nothing edits these: it knows
 * which blocks hold the first ones. */
static int lists_product(const device_lists *d)
{
    const gumbel_problem *p = d->rows.draw->p;
    return p->hidden_size > 0 && !gumbel_problem_edits(p);
}

/* That product; else this rank's y as logits, of which tokens are listed. */
static gumbel_problem listing(const device_lists *d)
{
    gumbel_problem q = *d->rows.draw->p;
    if (lists_product(d))
        return q;
    q.hidden_size = 0;
    q.hidden = q.weight = q.bias = (gumbel_tensor){0};
    q.logits =
        (gumbel_tensor){d->rows.own, GUMBEL_FLOAT32, q.batch, q.vocab, d->rows.stride, {0, 0}};
    q.scale = 1.0f;
    q.soft_cap = 0.0f;
    return q;
}

/* Rows that are drawn whole: those that are chosen, as slots of the batch. */
static gumbel_problem drawing(const device_lists *d)
{
    gumbel_problem w = ranks_problem_of_whole(&d->rows, 0, d->rows.draw->p->batch);
    if (!w.sampling.slots.of_row)
        w.sampling.slots.count = (int32_t)w.batch;
    w.sampling.slots.of_row = d->slots;
    w.sampling.live_rows = d->listed;
    return w;
}

static gumbel_status count(const device_lists *d, size_t *most, gumbel_error *error)
{
    const gumbel_device *device = d->rows.draw->group->device;
    gumbel_problem q = listing(d);
    size_t bytes;
    GUMBEL_FORWARD(ranks_count_device_rows(&d->rows, most, error));
    GUMBEL_FORWARD(device->backend->ranks->list_size(device, &q, &bytes, error));
    *most = bytes > *most ? bytes : *most;
    return GUMBEL_OK;
}

/* Have all ranks' lists, one behind the other. */
static gumbel_status tell(const device_lists *d, int64_t words, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    gumbel_peer_rows told = {.words = d->said,
                             .rows = 1,
                             .width = words,
                             .received = d->heard,
                             .received_width = words * group->transport.ranks};
    if (!group->peers.ranks)
        return ranks_queue_gather(group, draw->p->stream, d->said, d->heard,
                          (size_t)words * sizeof *d->said, error);
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        told.begins[r] = r * words;
        told.widths[r] = words;
    }
    return ranks_exchange_rows(group, draw->p->stream, &told, error);
}

/* List, tell, and draw what is told. */
static gumbel_status draw_told(const device_lists *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    const gumbel_rank_calls *calls = group->device->backend->ranks;
    const int64_t batch = draw->p->batch, words = words_of(batch);
    const gumbel_problem q = listing(d), whole = ranks_problem_of_whole(&d->rows, 0, batch);
    const gumbel_listing l = {&q,          &whole,         draw->output, d->said,
                              d->rows.own, d->rows.stride, draw->local,  d->left};
    if (!lists_product(d))
        GUMBEL_FORWARD(ranks_make_device_rows(&d->rows, 0, batch, error));
    if (group->peers.ranks && batch <= GUMBEL_PEERS_TOP64_ROWS &&
        batch * GUMBEL_RANK_WORDS <= (int64_t)group->peers.words) {
        group->traffic.exchanges++;
        group->traffic.bytes += batch * GUMBEL_RANK_WORDS * (int64_t)sizeof *d->said;
        return calls->tell_listed(group->device, &l, &group->peers, error);
    }
    GUMBEL_FORWARD(calls->list(group->device, &l, error));
    GUMBEL_FORWARD(tell(d, words, error));
    return calls->draw_listed(group->device, &l, d->heard, words, group->transport.ranks, error);
}

/* Exchange the rows that are left, by mailboxes or on an errand. */
static gumbel_status fetch_left(const device_lists *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    gumbel_device *device = group->device;
    gumbel_gathered_rows left = ranks_gathered_rows_of(&d->rows, draw->p->batch, 0);
    left.rows.chosen = d->left;
    left.rows.of_row = draw->p->sampling.slots.of_row;
    left.rows.list = d->list;
    left.rows.slots = d->slots;
    left.rows.listed = d->listed;
    if (group->peers.ranks)
        return ranks_exchange_rows(group, draw->p->stream, &left.rows, error);
    left.errand = ranks_get_collective(group, &left.timeout_ms);
    left.ended = (uint32_t *)d->left + draw->p->batch;
    GUMBEL_FORWARD(device->backend->ranks->ask(device, draw->p->stream, &left, error));
    return device->backend->ranks->lay(device, draw->p->stream, &left, error);
}

/* Draw what is left. */
static gumbel_status draw_left(const device_lists *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    gumbel_device *device = group->device;
    gumbel_problem whole = drawing(d);
    GUMBEL_FORWARD(fetch_left(d, error));
    GUMBEL_FORWARD(
        device->backend->ranks->draw_left(device, &whole, &d->whole, draw->local, error));
    return device->backend->ranks->spread(device, draw->p->stream, &d->whole, draw->output,
                                          draw->p->batch, draw->p->sampling.num_samples, d->list,
                                          d->listed, error);
}

gumbel_status ranks_queue_top64(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    device_lists d = carve(draw, cursor);
    size_t local = 0;
    if (!draw->output) {
        GUMBEL_FORWARD(count(&d, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(draw_told(&d, error));
    return draw_left(&d, error);
}
