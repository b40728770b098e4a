/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws by whole rows. Every rank makes its processed logits y, which its own masks, histories and
 * lists have edited; they are gathered some rows at a time, and the rank's device draws from them
 * as from the logits of one that holds all: by (2) of gumbel.h with y for l, to the bit. Logits as
 * they are travel beside them where they count, and are scored as given tokens are.
 */
#include "dist/draw.h"

#include "core/fail.h"
#include "core/output.h"
#include "maths/summary.h"

/* Bytes that all ranks' rows of one exchange take at most, if there are several rows. */
#define PIECE_BYTES (INT64_C(64) << 20)

typedef struct row_call {
    dist_draw *draw;
    int raw, noise;    /* what travels beside y: noise is S rows */
    int64_t kinds;     /* rows that travel for a row */
    int64_t vocab;     /* of the whole */
    int64_t piece;     /* rows of one exchange */
    float *y, *logits; /* [B, V] of the shard */
    float *sent;       /* [kinds, piece, V'] */
    float *received;   /* [R, kinds, piece, V'] */
    float *whole;      /* [kinds, piece, V]: y, logits, noise */
    int32_t *tokens, *top_ids, *status, *scratch;
    float *scores, *lse;
} row_call;

/* The rank's part of a problem, as what makes its processed logits. */
static gumbel_problem processing(const gumbel_problem *p)
{
    gumbel_problem q = *p;
    q.request &= GUMBEL_REQUEST_TRANSFORMS;
    q.sampling.temperature = (gumbel_row_f32){0};
    q.sampling.given = (gumbel_row_i32){0};
    q.sampling.noise = NULL;
    q.sampling.noise_stride = 0;
    q.sampling.num_samples = 1;
    q.with_mass = 0;
    return q;
}

/* What makes its logits as they are. */
static gumbel_problem storing(const gumbel_problem *p)
{
    gumbel_problem q = processing(p);
    q.request = 0;
    q.with_path = 0;
    q.scale = 1.0f;
    q.soft_cap = 0.0f;
    q.end_token = q.first_token + q.vocab;
    return q;
}

/* Rows first .. of the whole, of which `logits` has [count, V]. */
static gumbel_problem gathered(const row_call *c, int64_t first, int64_t count, const float *logits)
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
    w = gumbel_problem_slice(&w, first, count);
    w.logits.data = logits;
    return w;
}

/* The draw of a piece. */
static gumbel_problem drawing(const row_call *c, int64_t first, int64_t count, uint32_t outputs)
{
    gumbel_problem w = gathered(c, first, count, c->whole);
    w.request &= GUMBEL_REQUEST_TRUNCATION | GUMBEL_REQUEST_GIVEN;
    w.request |= outputs;
    w.with_mass = 1;
    if (c->noise) {
        w.sampling.noise = c->whole ? c->whole + (1 + c->raw) * c->piece * c->vocab : NULL;
        w.sampling.noise_stride = c->vocab;
    }
    return w;
}

/* Tokens scored by the logits as they are, `each` a row. */
static gumbel_problem scoring(const row_call *c, int64_t first, int64_t count, const int32_t *ids,
                              int32_t each)
{
    const float *raw = c->whole ? c->whole + c->piece * c->vocab : NULL;
    gumbel_problem w = gathered(c, first, count, raw);
    w.first_row = 0;
    w.request = GUMBEL_REQUEST_GIVEN | GUMBEL_REQUEST_RAW;
    w.sampling = (gumbel_sampling){.num_samples = each, .given = {ids, each}};
    w.position_by_row = w.mask_by_row = 0;
    w.list_of_row = NULL;
    w.with_mass = 1;
    return w;
}

/* The most that calls of the rank's device take. */
static gumbel_status count_local(const row_call *c, size_t *most, gumbel_error *error)
{
    const gumbel_group *group = c->draw->group;
    const gumbel_problem *p = c->draw->p;
    gumbel_problem q = processing(p);
    const uint32_t outputs = GUMBEL_REQUEST_RANKS | GUMBEL_REQUEST_KEPT | GUMBEL_REQUEST_BEST;
    if (dist_own(group)->rows > 0) {
        GUMBEL_FORWARD(dist_count(group, &q, GUMBEL_NEED_ROWS, most, error));
        GUMBEL_FORWARD(dist_count(group, &q, GUMBEL_NEED_PART, most, error));
        q = storing(p);
        GUMBEL_FORWARD(dist_count(group, &q, GUMBEL_NEED_ROWS, most, error));
    }
    q = drawing(c, 0, c->piece, (p->request & outputs) | GUMBEL_REQUEST_TOP);
    GUMBEL_FORWARD(dist_count(group, &q, 0, most, error));
    if (!c->raw)
        return GUMBEL_OK;
    static const int32_t none;
    q = scoring(c, 0, c->piece, &none, p->sampling.num_samples);
    GUMBEL_FORWARD(dist_count(group, &q, 0, most, error));
    q = scoring(c, 0, c->piece, &none, GUMBEL_TOP_MOST);
    return dist_count(group, &q, 0, most, error);
}

static void carve(row_call *c, gumbel_cursor *cursor)
{
    const gumbel_group *group = c->draw->group;
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, own = (size_t)dist_own(group)->rows, size = sizeof(float);
    size_t most = (size_t)group->rows_most, ranks = (size_t)group->transport.ranks;
    size_t samples = (size_t)p->sampling.num_samples, piece = (size_t)c->piece;
    size_t moving = (size_t)c->kinds * piece,
           wide = samples > GUMBEL_TOP_MOST ? samples : GUMBEL_TOP_MOST;
    c->y = gumbel_carve(cursor, batch, own, size);
    c->logits = gumbel_carve(cursor, c->raw ? batch : 0, own, size);
    c->sent = gumbel_carve(cursor, moving, most, size);
    c->received = gumbel_carve(cursor, ranks * moving, most, size);
    c->whole = gumbel_carve(cursor, moving, (size_t)c->vocab, size);
    c->tokens = gumbel_carve(cursor, piece, samples, size);
    c->top_ids = gumbel_carve(cursor, piece, GUMBEL_TOP_MOST, size);
    c->status = gumbel_carve(cursor, piece, 1, size);
    c->scratch = gumbel_carve(cursor, piece, wide + 1, size);
    c->scores = gumbel_carve(cursor, piece, wide, size);
    c->lse = gumbel_carve(cursor, piece, 1, size);
}

/* Make this rank's rows. A row that something spoils is NaN in all of the shard; where +inf does
 * it, so is the whole row told. */
static gumbel_status make_rows(const row_call *c, gumbel_error *error)
{
    const dist_draw *draw = c->draw;
    gumbel_device *device = draw->group->device;
    gumbel_problem q = processing(draw->p);
    const int64_t vocab = q.vocab;
    if (dist_own(draw->group)->rows == 0)
        return GUMBEL_OK;
    GUMBEL_FORWARD(device->backend->process(device, &q, c->y, vocab, draw->local, error));
    for (int64_t b = 0; b < q.batch; b++) {
        gumbel_summary found;
        float *row = c->y + b * vocab;
        if (row[0] == row[0])
            continue;
        gumbel_problem one = gumbel_problem_slice(&q, b, 1);
        GUMBEL_FORWARD(device->backend->partial(device, &one, &found, draw->local, error));
        for (int64_t i = 0; i < vocab && found.flags == GUMBEL_FLAG_INFINITE; i++)
            row[i] = INFINITY;
    }
    q = storing(draw->p);
    return c->raw ? device->backend->store(device, &q, c->logits, vocab, draw->local, error)
                  : GUMBEL_OK;
}

/* Row `kind` of row b, of this rank. */
static const float *own_row(const row_call *c, int64_t b, int64_t kind)
{
    const gumbel_problem *p = c->draw->p;
    if (kind == 0)
        return c->y + b * p->vocab;
    if (kind == 1 && c->raw)
        return c->logits + b * p->vocab;
    int64_t sample = kind - 1 - c->raw;
    return p->sampling.noise + (b * p->sampling.num_samples + sample) * p->sampling.noise_stride;
}

/* Where a row of kind `kind` lies among `piece` rows: noise goes by rows, then samples. */
static int64_t place_of(const row_call *c, int64_t kind, int64_t row)
{
    int64_t before = 1 + c->raw, samples = c->kinds - before;
    return kind < before ? kind * c->piece + row
                         : before * c->piece + row * samples + (kind - before);
}

/* Gather rows first .. + count, and lay them side by side. */
static gumbel_status gather(const row_call *c, int64_t first, int64_t count, gumbel_error *error)
{
    gumbel_group *group = c->draw->group;
    int64_t most = group->rows_most, moving = c->kinds * c->piece;
    int64_t own = dist_own(group)->rows;
    for (int64_t kind = 0; kind < c->kinds; kind++)
        for (int64_t b = 0; b < count; b++) {
            float *to = c->sent + place_of(c, kind, b) * most;
            if (own > 0)
                memcpy(to, own_row(c, first + b, kind), (size_t)own * sizeof *to);
            memset(to + own, 0, (size_t)(most - own) * sizeof *to);
        }
    GUMBEL_FORWARD(
        dist_gather(group, c->sent, c->received, (size_t)(moving * most) * sizeof(float), error));
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        const dist_shard *s = &group->shards[r];
        for (int64_t at = 0; at < moving && s->rows > 0; at++)
            memcpy(c->whole + at * c->vocab + (s->first_token - group->first_token),
                   c->received + (r * moving + at) * most, (size_t)s->rows * sizeof(float));
    }
    return GUMBEL_OK;
}

/* Log-probabilities of ids [count, each] by the logits as they are, to `into`, and the rows'
 * log-normalisers. */
static gumbel_status score(const row_call *c, int64_t first, int64_t count, const int32_t *ids,
                           int32_t each, float *into, gumbel_error *error)
{
    gumbel_device *device = c->draw->group->device;
    gumbel_problem w = scoring(c, first, count, ids, each);
    const gumbel_output out = {.struct_size = sizeof out,
                               .tokens = c->scratch,
                               .logprobs = into,
                               .lse = c->lse,
                               .logprobs_of = GUMBEL_RAW};
    return device->backend->sample(device, &w, &out, c->draw->local, error);
}

/* Write what logits as they are tell of a piece that is drawn. */
static gumbel_status read_raw(const row_call *c, int64_t first, int64_t count,
                              const gumbel_output *out, const gumbel_output *drawn,
                              gumbel_error *error)
{
    const gumbel_group *group = c->draw->group;
    int32_t samples = c->draw->p->sampling.num_samples, n = out->num_top;
    int raw = out->logprobs_of == GUMBEL_RAW;
    if (raw && (out->logprobs || out->lse))
        GUMBEL_FORWARD(score(c, first, count, drawn->tokens, samples, c->scores, error));
    for (int64_t b = 0; b < count; b++) {
        int ok = drawn->status[b] == GUMBEL_ROW_OK;
        for (int32_t s = 0; s < samples && raw && out->logprobs; s++)
            out->logprobs[b * samples + s] = ok ? c->scores[b * samples + s] : NAN;
        if (raw && out->lse)
            out->lse[b] = ok ? c->lse[b] : NAN;
    }
    if (raw && out->top_logprobs && n > 0)
        GUMBEL_FORWARD(score(c, first, count, drawn->top_ids, n, c->scores, error));
    for (int64_t at = 0; at < count * n; at++) {
        int32_t id = drawn->top_ids[at];
        float none = drawn->status[at / n] == GUMBEL_ROW_OK ? -INFINITY : NAN;
        if (raw && out->top_logprobs)
            out->top_logprobs[at] = id < 0 ? none : c->scores[at];
        if (out->top_logits)
            out->top_logits[at] =
                id < 0 ? none
                       : c->whole[(c->piece + at / n) * c->vocab + (id - group->first_token)];
    }
    return GUMBEL_OK;
}

/* Draw rows first .. + count, which are gathered. */
static gumbel_status draw_piece(const row_call *c, int64_t first, int64_t count,
                                gumbel_error *error)
{
    const gumbel_problem *p = c->draw->p;
    gumbel_device *device = c->draw->group->device;
    gumbel_output out = gumbel_output_slice(c->draw->output, first, p->sampling.num_samples);
    gumbel_output drawn = out;
    drawn.top_logits = NULL;
    if (c->raw) {
        drawn.top_ids = out.top_ids ? out.top_ids : c->top_ids;
        drawn.status = out.status ? out.status : c->status;
    }
    if (out.logprobs_of == GUMBEL_RAW) {
        drawn.logprobs = drawn.lse = drawn.top_logprobs = NULL;
        drawn.logprobs_of = GUMBEL_PROCESSED;
    }
    uint32_t outputs = (out.ranks ? GUMBEL_REQUEST_RANKS : 0) |
                       (out.kept ? GUMBEL_REQUEST_KEPT : 0) |
                       (out.num_best > 0 ? GUMBEL_REQUEST_BEST : 0);
    if (out.num_top > 0 && (drawn.top_ids || drawn.top_logprobs))
        outputs |= GUMBEL_REQUEST_TOP;
    gumbel_problem w = drawing(c, first, count, outputs);
    w.with_mass = drawn.lse || drawn.logprobs;
    GUMBEL_FORWARD(device->backend->sample(device, &w, &drawn, c->draw->local, error));
    return c->raw ? read_raw(c, first, count, &out, &drawn, error) : GUMBEL_OK;
}

gumbel_status dist_draw_rows(dist_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    row_call c = {.draw = draw,
                  .raw = (p->request & (GUMBEL_REQUEST_RAW | GUMBEL_REQUEST_LOGITS)) != 0,
                  .noise = p->sampling.noise != NULL,
                  .vocab = group->end_token - group->first_token};
    c.kinds = 1 + c.raw + (c.noise ? p->sampling.num_samples : 0);
    c.piece = PIECE_BYTES / (c.kinds * group->rows_most * group->transport.ranks * 4);
    c.piece = c.piece < 1 ? 1 : c.piece > p->batch ? p->batch : c.piece;
    carve(&c, cursor);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = group->end_token;
        GUMBEL_FORWARD(count_local(&c, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(make_rows(&c, error));
    GUMBEL_FORWARD(dist_begin(draw, NULL, NULL, 0, NULL, error));
    group->traffic.rows_by_rows += p->batch;
    for (int64_t first = 0; first < p->batch; first += c.piece) {
        int64_t count = p->batch - first < c.piece ? p->batch - first : c.piece;
        GUMBEL_FORWARD(gather(&c, first, count, error));
        GUMBEL_FORWARD(draw_piece(&c, first, count, error));
    }
    return GUMBEL_OK;
}
