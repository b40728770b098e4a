/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain draws: every rank gathers the summaries of all shards, merges them, and writes the outputs.
 */
#include "ranks/rank_draw.h"

#include "core/fail.h"
#include "core/output.h"
#include "maths/summary.h"

gumbel_status ranks_count_call(const gumbel_group *group, const gumbel_problem *problem,
                               uint64_t purpose, size_t *max_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    GUMBEL_FORWARD(group->device->backend->plan(group->device, problem, purpose, &plan, error));
    *max_bytes = plan.workspace_bytes > *max_bytes ? plan.workspace_bytes : *max_bytes;
    return GUMBEL_OK;
}

/* Add to a header what all calls of a group compare beside the problem. */
static void add_group_digests(ranks_header *header, const gumbel_group *group)
{
    header->digests[RANKS_VOCAB_SIZE] =
        ranks_add_digest(RANKS_DIGEST_START, &group->vocab_size, sizeof group->vocab_size);
}

gumbel_status ranks_begin_exchange(ranks_draw *draw, const void *payload, void *received,
                                   size_t bytes, void *rest, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    const ranks_shard *own = ranks_own_shard(group);
    ranks_header header = ranks_new_header(group->step + 1);
    ranks_digest_arguments(&header, p, draw->output);
    header.end_token = own->rows > 0 ? p->end_token : own->first_token;
    add_group_digests(&header, group);
    header.digests[RANKS_DRAFT] = group->draft_digest;
    GUMBEL_FORWARD(ranks_exchange_headers(group, &header, payload, received, bytes, rest, error));
    draw->end_token = group->first_token;
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        int64_t end = ranks_header_of(group, r)->end_token;
        if (end > group->shards[r].first_token && end > draw->end_token)
            draw->end_token = end;
    }
    group->traffic.rows += p->batch;
    return GUMBEL_OK;
}

gumbel_status ranks_compare_device_call(ranks_draw *draw, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    ranks_header header = ranks_new_header(group->step + 1);
    ranks_digest_host_arguments(&header, p, draw->output);
    add_group_digests(&header, group);
    uint64_t digest = ranks_add_digest(RANKS_DIGEST_START, header.digests, sizeof header.digests);
    group->traffic.rows += p->batch;
    group->exchanged = 1;
    if (group->compared_digest == digest) {
        group->traffic.calls++;
        return GUMBEL_OK;
    }
    header.end_token = p->end_token;
    group->compared_digest = 0;
    GUMBEL_FORWARD(ranks_exchange_headers(group, &header, NULL, NULL, 0, NULL, error));
    group->compared_digest = digest;
    return GUMBEL_OK;
}

/* Count the workspace of a shard's summaries, whose masses depend on outputs that are not known
 * yet. */
static gumbel_status count_summaries(const gumbel_group *group, gumbel_problem p, size_t *max_bytes,
                                     gumbel_error *error)
{
    for (p.with_mass = 0; p.with_mass <= 1; p.with_mass++)
        GUMBEL_FORWARD(ranks_count_call(group, &p, GUMBEL_CAPABILITY_SUMMARIES, max_bytes, error));
    return GUMBEL_OK;
}

gumbel_status ranks_draw_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    gumbel_problem p = *draw->p;
    size_t batch = (size_t)p.batch, samples = (size_t)p.sampling.num_samples;
    size_t ranks = (size_t)group->transport.ranks;
    size_t bytes = batch * samples * sizeof(gumbel_summary);
    gumbel_summary *own = gumbel_carve_array(cursor, batch, samples, sizeof *own);
    gumbel_summary *all = gumbel_carve_array(cursor, ranks * batch, samples, sizeof *all);
    void *rest = gumbel_carve_array(cursor, ranks * batch, samples, sizeof *all);
    if (!draw->output) {
        size_t local = 0;
        if (ranks_own_shard(group)->rows > 0)
            GUMBEL_FORWARD(count_summaries(group, p, &local, error));
        gumbel_carve_array(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    /* Alike on all ranks, as they compare which outputs there are. */
    p.with_mass = gumbel_output_has_lse(draw->output);
    draw->local = cursor->base + cursor->used;
    gumbel_summaries_clear(own, p.batch * p.sampling.num_samples);
    if (ranks_own_shard(group)->rows > 0)
        GUMBEL_FORWARD(
            group->device->backend->draw_partial(group->device, &p, NULL, own, draw->local, error));
    GUMBEL_FORWARD(ranks_begin_exchange(draw, own, all, bytes, rest, error));
    const gumbel_finish_call call = {.summaries = all,
                                     .parts = group->transport.ranks,
                                     .batch = p.batch,
                                     .num_samples = p.sampling.num_samples,
                                     .output = draw->output};
    gumbel_write_outputs(&call);
    return GUMBEL_OK;
}

gumbel_status ranks_queue_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    gumbel_device *device = group->device;
    gumbel_problem p = *draw->p;
    size_t batch = (size_t)p.batch, samples = (size_t)p.sampling.num_samples, local = 0;
    size_t gathered = group->peers.ranks ? 0 : (size_t)group->transport.ranks;
    gumbel_summary *own = gumbel_carve_array(cursor, batch, samples, sizeof *own);
    gumbel_summary *all = gumbel_carve_array(cursor, gathered * batch, samples, sizeof *all);
    const gumbel_finish_call call = {.summaries = group->peers.ranks ? own : all,
                                     .parts = group->transport.ranks,
                                     .batch = p.batch,
                                     .num_samples = p.sampling.num_samples,
                                     .output = draw->output};
    if (!draw->output) {
        GUMBEL_FORWARD(count_summaries(group, p, &local, error));
        gumbel_carve_array(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    p.with_mass = gumbel_output_has_lse(draw->output);
    GUMBEL_FORWARD(
        device->backend->draw_partial(device, &p, NULL, own, cursor->base + cursor->used, error));
    if (group->peers.ranks)
        return ranks_exchange_summaries(group, p.stream, &call, error);
    GUMBEL_FORWARD(
        ranks_queue_gather(group, p.stream, own, all, batch * samples * sizeof *own, error));
    return device->backend->finish(device, p.stream, &call, error);
}
