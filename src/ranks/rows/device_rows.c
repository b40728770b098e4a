/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws on GPUs from gathered whole rows. Each rank computes y, the value of z before the
 * temperature, for its shard, edited by its masks, histories and lists. The ranks gather the shards
 * of one slice of the batch at a time, scatter them into whole rows, and draw from these as from
 * logits. All work is queued on the stream.
 */
#include "ranks/rows/device_rows.h"

#include "core/fail.h"
#include "core/output.h"

/* Bytes of all ranks' rows in one exchange, unless one row takes more. A smaller limit costs time,
 * as each slice of a batch reads all weights again. */
#define SLICE_BYTES (INT64_C(192) << 20)

/* Returns the problem that computes y of rows [first, first + count) of this rank's shard. */
static gumbel_problem build_shard_problem(const gumbel_problem *p, int64_t first, int64_t count)
{
    gumbel_problem q = gumbel_problem_slice(p, first, count);
    q.features &= GUMBEL_FEATURE_TRANSFORMS;
    q.sampling.given = (gumbel_row_i32){0};
    q.sampling.num_samples = 1;
    q.with_mass = 0;
    return q;
}

gumbel_problem ranks_build_whole_problem(const ranks_device_rows *d, int64_t first, int64_t count)
{
    const gumbel_group *group = d->draw->group;
    gumbel_problem w = gumbel_problem_slice(d->draw->p, first, count);
    w.features &= ~(uint32_t)GUMBEL_FEATURE_TRANSFORMS;
    w.vocab = d->vocab;
    w.hidden_size = 0;
    w.hidden = w.weight = w.bias = (gumbel_tensor){0};
    w.logits = (gumbel_tensor){d->whole_rows, GUMBEL_FLOAT32, count, d->vocab, d->vocab, {0, 0}};
    w.scale = 1.0f;
    w.soft_cap = 0.0f;
    w.first_token = group->first_token;
    w.end_token = group->vocab_size && group->vocab_size < group->end_token ? group->vocab_size
                                                                            : group->end_token;
    w.with_path = 0;
    return w;
}

/* Returns the first field of a call that ranks on GPUs do not support; NULL: all are supported. */
static const char *find_unsupported_field(const gumbel_problem *p)
{
    const uint32_t raw = GUMBEL_FEATURE_RAW | GUMBEL_FEATURE_LOGITS;
    if (p->sampling.noise)
        return "sampling.noise";
    if (gumbel_problem_edits(p) && (p->features & raw))
        return p->features & GUMBEL_FEATURE_RAW ? "output.logprobs_of" : "output.top_logits";
    return NULL;
}

ranks_device_rows ranks_carve_device_rows(ranks_draw *draw, gumbel_cursor *cursor, int64_t slice)
{
    const gumbel_group *group = draw->group;
    size_t rows = (size_t)slice;
    size_t gathered_ranks = group->peers.ranks ? 0 : (size_t)group->transport.ranks;
    ranks_device_rows d = {.draw = draw,
                           .stride = (group->rows_max + 3) / 4 * 4,
                           .vocab = group->end_token - group->first_token,
                           .slice = slice};
    d.shard_rows = gumbel_carve_array(cursor, rows, (size_t)d.stride, sizeof *d.shard_rows);
    d.gathered_rows = gumbel_carve_array(cursor, gathered_ranks * rows, (size_t)d.stride,
                                         sizeof *d.gathered_rows);
    d.whole_rows = gumbel_carve_array(cursor, rows, (size_t)d.vocab, sizeof *d.whole_rows);
    return d;
}

gumbel_status ranks_count_device_rows(const ranks_device_rows *d, size_t *max_bytes,
                                      gumbel_error *error)
{
    const gumbel_group *group = d->draw->group;
    gumbel_problem q = build_shard_problem(d->draw->p, 0, d->slice);
    GUMBEL_FORWARD(ranks_count_call(group, &q, GUMBEL_CAPABILITY_SUMMARIES, max_bytes, error));
    if (q.hidden_size > 0) {
        q.features = 0;
        q.with_path = 0;
        GUMBEL_FORWARD(ranks_count_call(group, &q, GUMBEL_CAPABILITY_PRODUCT, max_bytes, error));
    }
    q = ranks_build_whole_problem(d, 0, d->slice);
    return ranks_count_call(group, &q, 0, max_bytes, error);
}

gumbel_status ranks_queue_shard_rows(const ranks_device_rows *d, int64_t first, int64_t count,
                                     gumbel_error *error)
{
    gumbel_device *device = d->draw->group->device;
    gumbel_problem q = build_shard_problem(d->draw->p, first, count);
    return device->backend->ranks->store_edited(device, &q, d->shard_rows, d->stride,
                                                d->draw->local, error);
}

/* Returns how many ranks, from `first` on, one exchange includes. */
static int32_t count_ranks_from(const gumbel_group *group, int32_t first)
{
    int32_t ranks = group->transport.ranks - first;
    return ranks < GUMBEL_PEERS_RANKS ? ranks : GUMBEL_PEERS_RANKS;
}

gumbel_peer_rows ranks_build_peer_rows(const ranks_device_rows *d, int64_t count, int32_t first)
{
    const gumbel_group *group = d->draw->group;
    gumbel_peer_rows rows = {.words = (const uint32_t *)d->shard_rows,
                             .rows = count,
                             .width = d->stride,
                             .received = (uint32_t *)d->whole_rows,
                             .received_width = d->vocab};
    for (int32_t r = 0; r < count_ranks_from(group, first); r++) {
        const ranks_shard *shard = &group->shards[first + r];
        rows.begins[r] = shard->first_token - group->first_token;
        rows.widths[r] = shard->rows;
    }
    return rows;
}

gumbel_gathered_rows ranks_build_gathered_rows(const ranks_device_rows *d, int64_t count,
                                               int32_t first)
{
    const gumbel_group *group = d->draw->group;
    return (gumbel_gathered_rows){.rows = ranks_build_peer_rows(d, count, first),
                                  .rank = group->transport.rank,
                                  .ranks = count_ranks_from(group, first),
                                  .gathered =
                                      (uint32_t *)d->gathered_rows + first * count * d->stride};
}

/* Queues the exchange of `count` rows of each shard into d->whole_rows. */
static gumbel_status queue_exchange(const ranks_device_rows *d, int64_t count, gumbel_error *error)
{
    gumbel_group *group = d->draw->group;
    gumbel_device *device = group->device;
    void *stream = d->draw->p->stream;
    size_t bytes = (size_t)(count * d->stride) * sizeof *d->shard_rows;
    if (group->peers.ranks) {
        gumbel_peer_rows rows = ranks_build_peer_rows(d, count, 0);
        return ranks_exchange_rows(group, stream, &rows, error);
    }
    GUMBEL_FORWARD(
        ranks_queue_gather(group, stream, d->shard_rows, d->gathered_rows, bytes, error));
    for (int32_t r = 0; r < group->transport.ranks; r += GUMBEL_PEERS_RANKS) {
        gumbel_gathered_rows rows = ranks_build_gathered_rows(d, count, r);
        GUMBEL_FORWARD(device->backend->ranks->scatter_rows(device, stream, &rows, error));
    }
    return GUMBEL_OK;
}

gumbel_status ranks_queue_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    const char *field = find_unsupported_field(p);
    size_t local_bytes = 0;
    if (field)
        return gumbel_fail(
            error, GUMBEL_ERROR_UNSUPPORTED, field,
            p->sampling.noise
                ? "ranks on GPUs do not support given noise"
                : "ranks on GPUs do not support this field with transforms, scale or soft-cap");
    int64_t row_bytes =
        (group->rows_max + 3) / 4 * 4 * group->transport.ranks * (int64_t)sizeof(float);
    int64_t slice = SLICE_BYTES / row_bytes < 1 ? 1 : SLICE_BYTES / row_bytes;
    ranks_device_rows d =
        ranks_carve_device_rows(draw, cursor, slice < p->batch ? slice : p->batch);
    if (!draw->output) {
        GUMBEL_FORWARD(ranks_count_device_rows(&d, &local_bytes, error));
        gumbel_carve_array(cursor, local_bytes, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    group->traffic.rows_by_rows += p->batch;
    for (int64_t first = 0; first < p->batch; first += d.slice) {
        int64_t rows = p->batch - first < d.slice ? p->batch - first : d.slice;
        gumbel_output out = gumbel_output_slice(draw->output, first, p->sampling.num_samples);
        gumbel_problem whole = ranks_build_whole_problem(&d, first, rows);
        GUMBEL_FORWARD(ranks_queue_shard_rows(&d, first, rows, error));
        GUMBEL_FORWARD(queue_exchange(&d, rows, error));
        GUMBEL_FORWARD(
            group->device->backend->sample(group->device, &whole, NULL, &out, draw->local, error));
    }
    return GUMBEL_OK;
}
