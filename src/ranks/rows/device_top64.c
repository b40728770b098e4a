/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on GPUs from the top-64 candidates of each rank, which all ranks exchange, truncate and
 * draw from alike. Rows that the candidates do not determine, such as rows without truncation or
 * with a top_p of all tokens, are fallback rows: the GPUs find them, exchange them whole and draw
 * from them. Without fallback rows a few launches end at once. All work is queued. Kernels with
 * peer memory exchange fallback rows alone. A transport's collective has a fixed size, so that
 * without peer memory a host collective gathers them, while the GPU waits.
 */
#include "ranks/rows/device_rows.h"

#include "core/fail.h"

typedef struct device_top64 {
    ranks_device_rows rows;
    uint32_t *own;      /* [count_words(B)] candidates of this rank */
    uint32_t *gathered; /* [ranks, count_words(B)] */
    int32_t *fallback;  /* [B + 1]: 1 for a fallback row; last: how many CTAs have ended */
    int32_t *list, *slots, *listed; /* the fallback rows, their slots, how many */
    gumbel_output drawn;            /* outputs of fallback rows, in the order of `list` */
} device_top64;

/* Reserves every output of a row: which are requested is not known as the workspace is counted. */
static gumbel_output carve_output(gumbel_cursor *cursor, const gumbel_output *requested,
                                  size_t batch, size_t samples)
{
    gumbel_output out = {.struct_size = sizeof out};
    const gumbel_output all = requested ? *requested : out;
#define CARVE(field, each)                                                                         \
    out.field = gumbel_carve_array(cursor, batch, each, sizeof *out.field);                        \
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

/* Words of a rank's candidates for a batch, in whole 16 bytes. */
static int64_t count_words(int64_t batch) { return (batch * GUMBEL_RANK_WORDS + 3) / 4 * 4; }

static device_top64 carve_top64(ranks_draw *draw, gumbel_cursor *cursor)
{
    const gumbel_problem *p = draw->p;
    size_t batch = (size_t)p->batch, ranks = (size_t)draw->group->transport.ranks;
    device_top64 d = {.rows = ranks_carve_device_rows(draw, cursor, p->batch)};
    size_t words = (size_t)count_words(p->batch);
    d.own = gumbel_carve_array(cursor, words, 1, sizeof *d.own);
    d.gathered = gumbel_carve_array(cursor, ranks, words, sizeof *d.gathered);
    d.fallback = gumbel_carve_array(cursor, batch + 1, 1, sizeof *d.fallback);
    d.list = gumbel_carve_array(cursor, batch, 1, sizeof *d.list);
    d.slots = gumbel_carve_array(cursor, batch, 1, sizeof *d.slots);
    d.listed = gumbel_carve_array(cursor, 1, 1, sizeof *d.listed);
    d.drawn = carve_output(cursor, draw->output, batch, (size_t)p->sampling.num_samples);
    return d;
}

/* Whether the product that stores the logits also selects candidates: nothing edits its logits, and
 * it knows which blocks hold the largest ones. */
static int product_selects(const device_top64 *d)
{
    const gumbel_problem *p = d->rows.draw->p;
    return p->hidden_size > 0 && !gumbel_problem_edits(p);
}

/* The problem from which candidates are selected: that product, or this rank's y as logits. */
static gumbel_problem find_selection(const device_top64 *d)
{
    gumbel_problem q = *d->rows.draw->p;
    if (product_selects(d))
        return q;
    q.hidden_size = 0;
    q.hidden = q.weight = q.bias = (gumbel_tensor){0};
    q.logits = (gumbel_tensor){d->rows.shard_rows, GUMBEL_FLOAT32, q.batch, q.vocab,
                               d->rows.stride,     {0, 0}};
    q.scale = 1.0f;
    q.soft_cap = 0.0f;
    return q;
}

/* The problem that draws fallback rows, which are slots of the batch. */
static gumbel_problem find_fallback_draw(const device_top64 *d)
{
    gumbel_problem w = ranks_build_whole_problem(&d->rows, 0, d->rows.draw->p->batch);
    if (!w.sampling.slots.of_row)
        w.sampling.slots.count = (int32_t)w.batch;
    w.sampling.slots.of_row = d->slots;
    w.sampling.live_rows = d->listed;
    w.list_of_row = d->list; /* indexes list_status */
    return w;
}

static gumbel_status count_local(const device_top64 *d, size_t *max_bytes, gumbel_error *error)
{
    const gumbel_device *device = d->rows.draw->group->device;
    gumbel_problem q = find_selection(d);
    size_t bytes;
    GUMBEL_FORWARD(ranks_count_device_rows(&d->rows, max_bytes, error));
    GUMBEL_FORWARD(device->backend->ranks->top64_size(device, &q, &bytes, error));
    *max_bytes = bytes > *max_bytes ? bytes : *max_bytes;
    return GUMBEL_OK;
}

/* Gathers the candidates of all ranks. */
static gumbel_status gather_candidates(const device_top64 *d, int64_t words, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    gumbel_peer_rows rows = {.words = d->own,
                             .rows = 1,
                             .width = words,
                             .received = d->gathered,
                             .received_width = words * group->transport.ranks};
    if (!group->peers.ranks)
        return ranks_queue_gather(group, draw->p->stream, d->own, d->gathered,
                                  (size_t)words * sizeof *d->own, error);
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        rows.begins[r] = r * words;
        rows.widths[r] = words;
    }
    return ranks_exchange_rows(group, draw->p->stream, &rows, error);
}

/* Selects, exchanges and draws, in one launch if the batch is small and there is peer memory. */
static gumbel_status draw_candidates(const device_top64 *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    const gumbel_rank_calls *calls = group->device->backend->ranks;
    const int64_t batch = draw->p->batch, words = count_words(batch);
    const gumbel_problem q = find_selection(d),
                         whole = ranks_build_whole_problem(&d->rows, 0, batch);
    const gumbel_top64_call call = {
        &q,          &whole,     draw->output, d->own, d->rows.shard_rows, d->rows.stride,
        draw->local, d->fallback};
    if (!product_selects(d))
        GUMBEL_FORWARD(ranks_queue_shard_rows(&d->rows, 0, batch, error));
    if (group->peers.ranks && batch <= GUMBEL_PEERS_TOP64_ROWS &&
        batch * GUMBEL_RANK_WORDS <= (int64_t)group->peers.words) {
        group->traffic.exchanges++;
        group->traffic.bytes += batch * GUMBEL_RANK_WORDS * (int64_t)sizeof *d->own;
        return calls->exchange_top64(group->device, &call, &group->peers, error);
    }
    GUMBEL_FORWARD(calls->find_top64(group->device, &call, error));
    GUMBEL_FORWARD(gather_candidates(d, words, error));
    return calls->draw_top64(group->device, &call, d->gathered, words, group->transport.ranks,
                             error);
}

/* Exchanges the fallback rows, by peer memory or by a host collective. */
static gumbel_status exchange_fallback(const device_top64 *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_group *group = draw->group;
    gumbel_device *device = group->device;
    gumbel_gathered_rows gathered = ranks_build_gathered_rows(&d->rows, draw->p->batch, 0);
    gathered.rows.chosen = d->fallback;
    gathered.rows.of_row = draw->p->sampling.slots.of_row;
    gathered.rows.list = d->list;
    gathered.rows.slots = d->slots;
    gathered.rows.listed = d->listed;
    if (group->peers.ranks)
        return ranks_exchange_rows(group, draw->p->stream, &gathered.rows, error);
    gathered.collective = ranks_get_collective(group, &gathered.timeout_ms);
    gathered.ended = (uint32_t *)d->fallback + draw->p->batch;
    GUMBEL_FORWARD(device->backend->ranks->request_rows(device, draw->p->stream, &gathered, error));
    return device->backend->ranks->scatter_rows(device, draw->p->stream, &gathered, error);
}

static gumbel_status draw_fallback(const device_top64 *d, gumbel_error *error)
{
    const ranks_draw *draw = d->rows.draw;
    gumbel_device *device = draw->group->device;
    gumbel_problem whole = find_fallback_draw(d);
    GUMBEL_FORWARD(exchange_fallback(d, error));
    GUMBEL_FORWARD(
        device->backend->ranks->draw_unresolved(device, &whole, &d->drawn, draw->local, error));
    return device->backend->ranks->scatter_outputs(device, draw->p->stream, &d->drawn, draw->output,
                                                   draw->p->batch, draw->p->sampling.num_samples,
                                                   d->list, d->listed, error);
}

gumbel_status ranks_queue_top64(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    device_top64 d = carve_top64(draw, cursor);
    size_t local = 0;
    if (!draw->output) {
        GUMBEL_FORWARD(count_local(&d, &local, error));
        gumbel_carve_array(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(draw_candidates(&d, error));
    return draw_fallback(&d, error);
}
