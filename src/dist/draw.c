/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a group: what a draw takes, and the draw, plain or by whole rows.
 */
#include "dist/rows/rows.h"

#include "core/fail.h"
#include "core/output.h"
#include "maths/summary.h"
#include "validate/validate.h"

#define NEEDS_ROWS (~(uint32_t)GUMBEL_REQUEST_TRANSFORMS)

int ranks_is_plain(const gumbel_group *group, const gumbel_problem *p)
{
    return !(p->request & NEEDS_ROWS) && (group->aligned || !p->with_mass);
}

gumbel_status ranks_count_call(const gumbel_group *group, const gumbel_problem *problem, uint32_t more,
                         size_t *most, gumbel_error *error)
{
    size_t bytes;
    GUMBEL_FORWARD(group->device->backend->call_size(group->device, problem, more, &bytes, error));
    *most = bytes > *most ? bytes : *most;
    return GUMBEL_OK;
}

gumbel_status ranks_begin_exchange(ranks_draw *draw, const void *payload, void *received, size_t bytes,
                         void *rest, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    const ranks_shard *own = ranks_own_shard(group);
    ranks_header header = ranks_new_header(group->step + 1);
    ranks_digest_arguments(&header, p, draw->output);
    header.end_token = own->rows > 0 ? p->end_token : own->first_token;
    header.digests[RANKS_VOCAB_SIZE] =
        ranks_add_digest(RANKS_DIGEST_START, &group->vocab_size, sizeof group->vocab_size);
    header.digests[RANKS_DRAFT] = group->drafted;
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

/* Count a shard's summaries: whether they are to have masses is not known yet. */
static gumbel_status count_part(const gumbel_group *group, gumbel_problem p, size_t *most,
                                gumbel_error *error)
{
    for (p.with_mass = 0; p.with_mass <= 1; p.with_mass++)
        GUMBEL_FORWARD(ranks_count_call(group, &p, GUMBEL_NEED_PART, most, error));
    return GUMBEL_OK;
}

/* Whether summaries are to have masses: the same on all ranks, as they compare their outputs. */
static int weighs(const gumbel_output *output) { return output->lse || output->logprobs; }

gumbel_status ranks_draw_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    gumbel_problem p = *draw->p;
    size_t batch = (size_t)p.batch, samples = (size_t)p.sampling.num_samples;
    size_t ranks = (size_t)group->transport.ranks;
    size_t bytes = batch * samples * sizeof(gumbel_summary);
    gumbel_summary *own = gumbel_carve(cursor, batch, samples, sizeof *own);
    gumbel_summary *all = gumbel_carve(cursor, ranks * batch, samples, sizeof *all);
    void *rest = gumbel_carve(cursor, ranks * batch, samples, sizeof *all);
    if (!draw->output) {
        size_t local = 0;
        if (ranks_own_shard(group)->rows > 0)
            GUMBEL_FORWARD(count_part(group, p, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    p.with_mass = weighs(draw->output);
    draw->local = cursor->base + cursor->used;
    gumbel_summaries_clear(own, p.batch * p.sampling.num_samples);
    if (ranks_own_shard(group)->rows > 0)
        GUMBEL_FORWARD(group->device->backend->partial(group->device, &p, own, draw->local, error));
    GUMBEL_FORWARD(ranks_begin_exchange(draw, own, all, bytes, rest, error));
    const gumbel_finish_call call = {.summaries = all,
                                     .parts = group->transport.ranks,
                                     .batch = p.batch,
                                     .num_samples = p.sampling.num_samples,
                                     .output = draw->output};
    gumbel_read_out(&call);
    return GUMBEL_OK;
}

gumbel_status ranks_draw_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    const gumbel_problem *p = draw->p;
    ranks_whole_rows rows = ranks_carve_whole_rows(draw, cursor);
    int64_t *which = gumbel_carve(cursor, (size_t)p->batch, 1, sizeof *which);
    if (!draw->output) {
        size_t local = 0;
        draw->end_token = draw->group->end_token;
        GUMBEL_FORWARD(ranks_count_whole_rows(&rows, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    draw->local = cursor->base + cursor->used;
    GUMBEL_FORWARD(ranks_make_shard_rows(&rows, error));
    GUMBEL_FORWARD(ranks_begin_exchange(draw, NULL, NULL, 0, NULL, error));
    for (int64_t b = 0; b < p->batch; b++)
        which[b] = b;
    return ranks_draw_gathered_rows(&rows, which, p->batch, error);
}

/* Whether the tokens that ranks list may tell a draw: nothing is given, and raw masses merge. */
static int listed_tells(const gumbel_group *group, const gumbel_problem *p)
{
    return !(p->request & GUMBEL_REQUEST_GIVEN) && !p->sampling.noise &&
           (group->aligned || !(p->request & GUMBEL_REQUEST_RAW));
}

/* What the host knows of a call on a GPU, compared where it is not what the last call was. */
static gumbel_status agree_on_device(ranks_draw *draw, gumbel_error *error)
{
    gumbel_group *group = draw->group;
    const gumbel_problem *p = draw->p;
    ranks_header header = ranks_new_header(group->step + 1);
    ranks_digest_host_arguments(&header, p, draw->output);
    header.digests[RANKS_VOCAB_SIZE] =
        ranks_add_digest(RANKS_DIGEST_START, &group->vocab_size, sizeof group->vocab_size);
    uint64_t digest = ranks_add_digest(RANKS_DIGEST_START, header.digests, sizeof header.digests);
    group->traffic.rows += p->batch;
    group->entered = 1;
    if (group->agreed == digest) {
        group->traffic.calls++;
        return GUMBEL_OK;
    }
    header.end_token = p->end_token;
    group->agreed = 0;
    GUMBEL_FORWARD(ranks_exchange_headers(group, &header, NULL, NULL, 0, NULL, error));
    group->agreed = digest;
    return GUMBEL_OK;
}

/* A plain draw on a GPU: all of it is queued. */
static gumbel_status draw_plain_on_device(ranks_draw *draw, gumbel_cursor *cursor,
                                          gumbel_error *error)
{
    gumbel_group *group = draw->group;
    gumbel_device *device = group->device;
    gumbel_problem p = *draw->p;
    size_t batch = (size_t)p.batch, samples = (size_t)p.sampling.num_samples, local = 0;
    size_t others = group->peers.ranks ? 0 : (size_t)group->transport.ranks;
    gumbel_summary *own = gumbel_carve(cursor, batch, samples, sizeof *own);
    gumbel_summary *all = gumbel_carve(cursor, others * batch, samples, sizeof *all);
    const gumbel_finish_call call = {.summaries = group->peers.ranks ? own : all,
                                     .parts = group->transport.ranks,
                                     .batch = p.batch,
                                     .num_samples = p.sampling.num_samples,
                                     .output = draw->output};
    if (!draw->output) {
        GUMBEL_FORWARD(count_part(group, p, &local, error));
        gumbel_carve(cursor, local, 1, 1);
        return GUMBEL_OK;
    }
    p.with_mass = weighs(draw->output);
    GUMBEL_FORWARD(device->backend->partial(device, &p, own, cursor->base + cursor->used, error));
    if (group->peers.ranks)
        return ranks_exchange_summaries(group, p.stream, &call, error);
    GUMBEL_FORWARD(ranks_queue_gather(group, p.stream, own, all, batch * samples * sizeof *own, error));
    return device->backend->finish(device, p.stream, &call, error);
}

static gumbel_status draw_on_device(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    if (draw->output)
        GUMBEL_FORWARD(agree_on_device(draw, error));
    if (ranks_is_plain(draw->group, draw->p))
        return draw_plain_on_device(draw, cursor, error);
    return ranks_can_list(draw->group, draw->p) ? ranks_queue_top64(draw, cursor, error)
                                               : ranks_queue_whole_rows(draw, cursor, error);
}

static gumbel_status run(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error)
{
    if (!draw->group->table.host_memory)
        return draw_on_device(draw, cursor, error);
    if (ranks_is_plain(draw->group, draw->p))
        return ranks_draw_plain(draw, cursor, error);
    return listed_tells(draw->group, draw->p) ? ranks_draw_candidates(draw, cursor, error)
                                              : ranks_draw_whole_rows(draw, cursor, error);
}

static gumbel_status call_size(const gumbel_device *device, const gumbel_problem *problem,
                               uint32_t more, size_t *bytes, gumbel_error *error)
{
    gumbel_cursor cursor = {NULL, 0};
    /* A count changes nothing in the group. */
    ranks_draw draw = {.group = (gumbel_group *)(uintptr_t)device, .p = problem};
    (void)more;
    GUMBEL_FORWARD(run(&draw, &cursor, error));
    *bytes = cursor.used;
    return GUMBEL_OK;
}

static gumbel_status sample(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, gumbel_error *error)
{
    gumbel_cursor cursor = {workspace, 0};
    ranks_draw draw = {.group = (gumbel_group *)device, .p = problem, .output = output};
    if (draw.group->broken)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an earlier exchange failed");
    return run(&draw, &cursor, error);
}

static int64_t whole_end(const gumbel_device *device, const gumbel_problem *problem)
{
    const gumbel_group *group = (const gumbel_group *)device;
    (void)problem;
    return group->vocab_size && group->vocab_size < group->end_token ? group->vocab_size
                                                                     : group->end_token;
}

/* Drafts are laid out, and what was drawn is accepted, as on the rank's own device. */
static gumbel_status expand_drafts(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error)
{
    gumbel_device *own = ((gumbel_group *)device)->device;
    return own->backend->expand_drafts(own, stream, verification, by, error);
}

static gumbel_status accept_drafts(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error)
{
    gumbel_device *own = ((gumbel_group *)device)->device;
    return own->backend->accept_drafts(own, stream, verification, by, error);
}

gumbel_backend ranks_backend_of(const gumbel_device *device)
{
    gumbel_backend table = {.serves = device->backend->serves,
                            .host_memory = device->backend->host_memory,
                            .call_size = call_size,
                            .sample = sample,
                            .whole_end = whole_end};
    if (!table.host_memory) {
        table.expand_drafts = expand_drafts;
        table.accept_drafts = accept_drafts;
    }
    return table;
}
