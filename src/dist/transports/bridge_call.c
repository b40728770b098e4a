/* SPDX-License-Identifier: Apache-2.0
 *
 * A call over a bridge: its parameters are brought to the host, where they are checked and read as
 * a CPU's are; the group draws; what it wrote is put back.
 */
#include "core/fail.h"
#include "core/output.h"
#include "core/workspace.h"
#include "dist/draw.h"
#include "dist/transports/bridge.h"
#include "validate/validate.h"

#include <inttypes.h>

gumbel_status dist_bridge_copy(dist_bridge *bridge, const void **data, size_t bytes,
                               gumbel_error *error)
{
    if (!*data)
        return GUMBEL_OK;
    dist_copy *copy = dist_bridge_hold(bridge, bytes, error);
    if (!copy)
        return GUMBEL_ERROR_MEMORY;
    copy->there = *data;
    GUMBEL_FORWARD(dist_bridge_bring(bridge, copy->host, *data, bytes, error));
    *data = copy->host;
    return GUMBEL_OK;
}

#define BRING(field, count) DIST_BRING(bridge, field, count, error)

/* Elements of a row parameter of `rows` rows, `width` wide; its stride is explicit. */
static int64_t span(int64_t rows, int64_t stride, int64_t width)
{
    return rows == 0 && stride ? 0 : (stride ? (rows - 1) * stride : 0) + width;
}

/* Lists of tokens: where they end is known once their offsets are here. */
gumbel_status dist_bridge_lists(dist_bridge *bridge, gumbel_token_lists *lists, int64_t batch,
                                const char *name, gumbel_error *error)
{
    if (!lists->offsets)
        return GUMBEL_OK;
    BRING(lists->offsets, batch + 1);
    int64_t end = lists->offsets[batch];
    GUMBEL_REFUSE_IF(end < 0 || end > INT64_C(1) << 40, error, name,
                     "offsets[%" PRId64 "] is %" PRId64, batch, end);
    BRING(lists->ids, end);
    BRING(lists->values, end);
    return GUMBEL_OK;
}

static gumbel_status bring_transforms(dist_bridge *bridge, dist_bridged *call,
                                      const gumbel_problem *p, gumbel_error *error)
{
    const gumbel_transforms *checked = &p->transforms;
    gumbel_transforms *t = &call->transforms;
    int64_t places = gumbel_places(&p->sampling.slots, p->batch);
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, call->sampling.transforms, "sampling.transforms", error));
    t->struct_size = sizeof *t;
    call->sampling.transforms = t;
    BRING(t->repetition.data, span(places, checked->repetition.stride, 1));
    BRING(t->frequency.data, span(places, checked->frequency.stride, 1));
    BRING(t->presence.data, span(places, checked->presence.stride, 1));
#define LISTS(field)                                                                               \
    GUMBEL_FORWARD(                                                                                \
        dist_bridge_lists(bridge, &t->field, p->batch, "sampling.transforms." #field, error))
    LISTS(allowed);
    LISTS(banned);
    LISTS(bias);
    LISTS(prompt_tokens);
    LISTS(output_tokens);
#undef LISTS
    return GUMBEL_OK;
}

static gumbel_status bring_truncation(dist_bridge *bridge, dist_bridged *call,
                                      const gumbel_problem *p, gumbel_error *error)
{
    const gumbel_truncation *checked = &p->truncation;
    gumbel_truncation *t = &call->truncation;
    int64_t places = gumbel_places(&p->sampling.slots, p->batch);
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, call->sampling.truncation, "sampling.truncation", error));
    t->struct_size = sizeof *t;
    call->sampling.truncation = t;
    BRING(t->min_p.data, span(places, checked->min_p.stride, 1));
    BRING(t->top_k.data, span(places, checked->top_k.stride, 1));
    BRING(t->top_p.data, span(places, checked->top_p.stride, 1));
    return GUMBEL_OK;
}

gumbel_status dist_bridge_sampling(dist_bridge *bridge, dist_bridged *call,
                                   const gumbel_sampling *sampling, const gumbel_problem *p,
                                   gumbel_error *error)
{
    const gumbel_sampling *checked = &p->sampling;
    gumbel_sampling *s = &call->sampling;
    int64_t places = gumbel_places(&checked->slots, p->batch);
    s->struct_size = sizeof *s;
    if (!sampling)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_options(s, sizeof *s, sampling, "sampling", error));
    s->struct_size = sizeof *s;
    BRING(s->temperature.data, span(places, checked->temperature.stride, 1));
    BRING(s->seed.data, span(places, checked->seed.stride, 1));
    BRING(s->position.data, span(places, checked->position.stride, 1));
    BRING(s->first_sample.data, span(places, checked->first_sample.stride, 1));
    BRING(s->slots.of_row, p->batch);
    BRING(s->live_rows, 1);
    BRING(s->given.data, span(p->batch, checked->given.stride, checked->num_samples));
    BRING(s->noise, span(p->batch * checked->num_samples, checked->noise_stride, p->vocab));
    if (s->transforms)
        GUMBEL_FORWARD(bring_transforms(bridge, call, p, error));
    return s->truncation ? bring_truncation(bridge, call, p, error) : GUMBEL_OK;
}

gumbel_status dist_bridge_output(dist_bridge *bridge, dist_bridged *call,
                                 const gumbel_output *checked, const gumbel_problem *p,
                                 gumbel_error *error)
{
    gumbel_output *out = &call->output;
    int64_t draws = p->batch * p->sampling.num_samples;
    *out = *checked;
    out->struct_size = sizeof *out;
#define HOLD(field, count)                                                                         \
    if (out->field) {                                                                              \
        dist_copy *copy = dist_bridge_hold(bridge, (size_t)(count) * sizeof *out->field, error);   \
        if (!copy)                                                                                 \
            return GUMBEL_ERROR_MEMORY;                                                            \
        copy->there = (const unsigned char *)out->field;                                           \
        copy->written = 1;                                                                         \
        out->field = (void *)copy->host;                                                           \
    }
    HOLD(tokens, draws)
    HOLD(logprobs, draws)
    HOLD(scores, draws)
    HOLD(ranks, draws)
    HOLD(lse, p->batch)
    HOLD(status, p->batch)
    HOLD(kept, p->batch)
    HOLD(top_ids, p->batch * out->num_top)
    HOLD(top_logprobs, p->batch * out->num_top)
    HOLD(top_logits, p->batch * out->num_top)
    HOLD(best_ids, p->batch * out->num_best)
    HOLD(best_scores, p->batch * out->num_best)
#undef HOLD
    return GUMBEL_OK;
}

gumbel_status dist_bridge_end(dist_bridge *bridge, gumbel_error *error)
{
    const gumbel_rank_calls *calls = bridge->gpu->backend->ranks;
    for (int i = 0; i < bridge->copies; i++) {
        const dist_copy *c = &bridge->of[i];
        void *to = (void *)(uintptr_t)c->there;
        if (c->written && c->bytes > 0)
            GUMBEL_FORWARD(calls->put(bridge->gpu, bridge->stream, to, c->host, c->bytes, error));
    }
    return dist_wait_stream(bridge->group, bridge->gpu, bridge->stream, error);
}

/* A call's problem, by which sizes are told; what it points at is not read. */
static gumbel_status read_problem(gumbel_problem *p, gumbel_output *out, const gumbel_head *head,
                                  const gumbel_logits *logits, const gumbel_sampling *sampling,
                                  const gumbel_output *output, gumbel_error *error)
{
    GUMBEL_FORWARD(head ? gumbel_read_head(p, GUMBEL_SCREEN_LAYOUT_NONE, head, sampling, error)
                        : gumbel_read_logits(p, logits, sampling, error));
    return gumbel_read_output(out, output, p->batch, error);
}

gumbel_status dist_bridge_size(const dist_bridge *bridge, const gumbel_head *head,
                               const gumbel_logits *logits, const gumbel_sampling *sampling,
                               const gumbel_output *output, size_t *bytes, gumbel_error *error)
{
    gumbel_problem p;
    gumbel_output out;
    GUMBEL_FORWARD(read_problem(&p, &out, head, logits, sampling, output, error));
    return dist_bridge_room(bridge, &p, 0, bytes, error);
}

gumbel_status dist_bridge_begin(dist_bridge *bridge, void *stream, const gumbel_tensor *logits,
                                void *workspace, size_t given, size_t needed, size_t uploads,
                                gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_check_workspace(workspace, given, needed,
                                          "the workspace size function of the group", error));
    bridge->stream = stream;
    bridge->logits = *logits;
    bridge->room = workspace;
    bridge->upload_most = uploads;
    bridge->copies = 0;
    return dist_wait_stream(bridge->group, bridge->gpu, stream, error);
}

/* The group's own call, with a workspace on the host. */
static gumbel_status draw(dist_bridge *bridge, const gumbel_head *head, const gumbel_logits *logits,
                          const dist_bridged *call, gumbel_error *error)
{
    gumbel_device *group = &bridge->group->base;
    size_t bytes = 0;
    GUMBEL_FORWARD(
        gumbel_workspace_size(group, head, logits, &call->sampling, &call->output, &bytes, error));
    dist_copy *workspace = dist_bridge_hold(bridge, bytes, error);
    if (!workspace)
        return GUMBEL_ERROR_MEMORY;
    return head ? gumbel_sample(group, NULL, head, &call->sampling, &call->output, workspace->host,
                                bytes, error)
                : gumbel_sample_logits(group, NULL, logits, &call->sampling, &call->output,
                                       workspace->host, bytes, error);
}

gumbel_status dist_bridge_draw(dist_bridge *bridge, void *stream, const gumbel_head *head,
                               const gumbel_logits *logits, const gumbel_sampling *sampling,
                               const gumbel_output *output, void *workspace, size_t workspace_bytes,
                               gumbel_error *error)
{
    gumbel_problem p;
    gumbel_output out;
    dist_bridged call = {.sampling = {0}};
    size_t needed;
    GUMBEL_FORWARD(read_problem(&p, &out, head, logits, sampling, output, error));
    GUMBEL_FORWARD(dist_bridge_room(bridge, &p, 0, &needed, error));
    GUMBEL_FORWARD(
        dist_bridge_begin(bridge, stream, &p.logits, workspace, workspace_bytes, needed, 0, error));
    GUMBEL_FORWARD(dist_bridge_sampling(bridge, &call, sampling, &p, error));
    GUMBEL_FORWARD(dist_bridge_output(bridge, &call, &out, &p, error));
    GUMBEL_FORWARD(draw(bridge, head, logits, &call, error));
    return dist_bridge_end(bridge, error);
}
