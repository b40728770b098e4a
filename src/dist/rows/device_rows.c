/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on GPUs by whole rows: every rank makes its part of y, what z is before the temperature,
 * which its own masks, histories and lists have edited; parts are gathered some rows at a time,
 * laid side by side, and drawn from as from the logits of a GPU that holds all. All of it is
 * queued.
 */
#include "dist/rows/rows.h"

#include "core/fail.h"
#include "core/output.h"

/* Bytes that all ranks' rows of one exchange take at most, if there are several rows. */
#define PIECE_BYTES (INT64_C(64) << 20)

typedef struct device_rows {
    dist_draw *draw;
    int64_t stride; /* of a shard's row, as all ranks have it */
    int64_t vocab;  /* of the whole */
    int64_t piece;  /* rows of one exchange */
    float *own;     /* [piece] at `stride` */
    float *all;     /* [R, piece] at `stride` */
    float *whole;   /* [piece, vocab] */
} device_rows;

/* What makes y of rows [first, first + count). */
static gumbel_problem editing(const gumbel_problem *p, int64_t first, int64_t count)
{
    gumbel_problem q = gumbel_problem_slice(p, first, count);
    q.request &= GUMBEL_REQUEST_TRANSFORMS;
    q.sampling.given = (gumbel_row_i32){0};
    q.sampling.num_samples = 1;
    q.with_mass = 0;
    return q;
}

/* What draws from them. */
static gumbel_problem drawing(const device_rows *d, int64_t first, int64_t count)
{
    const gumbel_group *group = d->draw->group;
    gumbel_problem w = gumbel_problem_slice(d->draw->p, first, count);
    w.request &= ~(uint32_t)GUMBEL_REQUEST_TRANSFORMS;
    w.vocab = d->vocab;
    w.hidden_size = 0;
    w.hidden = w.weight = w.bias = (gumbel_tensor){0};
    w.logits = (gumbel_tensor){d->whole, GUMBEL_FLOAT32, count, d->vocab, d->vocab, {0, 0}};
    w.scale = 1.0f;
    w.soft_cap = 0.0f;
    w.first_token = group->first_token;
    w.end_token = group->vocab_size && group->vocab_size < group->end_token ? group->vocab_size
                                                                            : group->end_token;
    w.with_path = 0;
    return w;
}

/* What groups on GPUs do not serve; NULL: all of it. */
static const char *refused(const gumbel_problem *p)
{
    const uint32_t raw = GUMBEL_REQUEST_RAW | GUMBEL_REQUEST_LOGITS;
    int edited = (p->request & GUMBEL_REQUEST_TRANSFORMS) || p->scale != 1.0f || p->soft_cap > 0.0f;
    if (p->sampling.noise)
        return "sampling.noise";
    if (edited && (p->request & raw))
        return p->request & GUMBEL_REQUEST_RAW ? "output.logprobs_of" : "output.top_logits";
    return NULL;
}

static gumbel_status count(const device_rows *d, size_t *most, gumbel_error *error)
{
    const gumbel_group *group = d->draw->group;
    gumbel_problem q = editing(d->draw->p, 0, d->piece);
    GUMBEL_FORWARD(dist_count(group, &q, GUMBEL_NEED_PART, most, error));
    if (q.hidden_size > 0) {
        q.request = 0;
        q.with_path = 0;
        GUMBEL_FORWARD(dist_count(group, &q, GUMBEL_NEED_PRODUCT, most, error));
    }
    q = drawing(d, 0, d->piece);
    return dist_count(group, &q, 0, most, error);
}

static gumbel_status draw_piece(const device_rows *d, int64_t first, int64_t rows,
                                gumbel_error *error)
{
    gumbel_group *group = d->draw->group;
    gumbel_device *device = group->device;
    const gumbel_backend *backend = device->backend;
    const gumbel_problem *p = d->draw->p;
    gumbel_problem q = editing(p, first, rows);
    int64_t sent = rows * d->stride;
    GUMBEL_FORWARD(backend->edit(device, &q, d->own, d->stride, d->draw->local, error));
    GUMBEL_FORWARD(
        dist_queue(group, p->stream, d->own, d->all, (size_t)sent * sizeof *d->own, error));
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        const dist_shard *s = &group->shards[r];
        GUMBEL_FORWARD(backend->lay(device, p->stream,
                                    d->whole + (s->first_token - group->first_token), d->vocab,
                                    d->all + r * sent, d->stride, rows, s->rows, error));
    }
    q = drawing(d, first, rows);
    gumbel_output out = gumbel_output_slice(d->draw->output, first, p->sampling.num_samples);
    return backend->sample(device, &q, &out, d->draw->local, error);
}

gumbel_status dist_draw_device_rows(dist_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    const char *field = refused(p);
    size_t local = 0, ranks = (size_t)group->transport.ranks;
    device_rows d = {.draw = draw,
                     .stride = (group->rows_most + 3) / 4 * 4,
                     .vocab = group->end_token - group->first_token};
    if (field)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, field,
                           "ranks on GPUs do not serve it beside transforms, scale or soft-cap");
    d.piece = PIECE_BYTES / (d.stride * (int64_t)ranks * (int64_t)sizeof(float));
    d.piece = d.piece < 1 ? 1 : d.piece > p->batch ? p->batch : d.piece;
    d.own = gumbel_carve(cursor, (size_t)d.piece, (size_t)d.stride, sizeof *d.own);
    d.all = gumbel_carve(cursor, ranks * (size_t)d.piece, (size_t)d.stride, sizeof *d.all);
    d.whole = gumbel_carve(cursor, (size_t)d.piece, (size_t)d.vocab, sizeof *d.whole);
    if (!draw->output) {
        GUMBEL_FORWARD(count(&d, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    draw->group->traffic.rows_by_rows += p->batch;
    for (int64_t first = 0; first < p->batch; first += d.piece) {
        int64_t rows = p->batch - first < d.piece ? p->batch - first : d.piece;
        GUMBEL_FORWARD(draw_piece(&d, first, rows, error));
    }
    return GUMBEL_OK;
}
