/* SPDX-License-Identifier: Apache-2.0 */
#include "core/backend.h"
#include "core/fail.h"

#include "far_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAR ((uintptr_t)1 << 50)

struct far_device {
    gumbel_device base; /* first */
    gumbel_backend table;
    gumbel_device *cpu;
    int hangs;
};

void *far_of(const void *data) { return data ? (void *)((uintptr_t)data + FAR) : NULL; }

void *far_stream(void) { return (void *)(FAR + 64); }

/* What a pointer of the device stands for; one of the host is a mistake. */
static void *near_of(const void *data)
{
    if (data && (uintptr_t)data < FAR)
        die("a pointer of the host came to the device");
    return data ? (void *)((uintptr_t)data - FAR) : NULL;
}

/* ------------------------------------------------------------------------------- the table ---- */

static void check_stream(const void *stream)
{
    if (stream != far_stream())
        die("another stream than the call's");
}

static void lists_near(gumbel_token_lists *lists)
{
    lists->offsets = near_of(lists->offsets);
    lists->ids = near_of(lists->ids);
    lists->values = near_of(lists->values);
}

/* A problem as the CPU draws it. */
static gumbel_problem problem_near(const gumbel_problem *p)
{
    gumbel_problem q = *p;
    gumbel_transforms *t = &q.transforms;
    gumbel_history *h = &q.history;
    check_stream(q.stream);
    if (q.sampling.live_rows)
        die("live rows are not cut off");
    q.stream = NULL;
    q.hidden.data = near_of(q.hidden.data);
    q.weight.data = near_of(q.weight.data);
    q.bias.data = near_of(q.bias.data);
    q.logits.data = near_of(q.logits.data);
#define NEAR(field) q.field = near_of(q.field)
    NEAR(sampling.temperature.data);
    NEAR(sampling.seed.data);
    NEAR(sampling.position.data);
    NEAR(sampling.first_sample.data);
    NEAR(sampling.slots.of_row);
    NEAR(sampling.noise);
    NEAR(list_of_row);
    NEAR(path.offsets);
    NEAR(path.ids);
    NEAR(transforms.mask.data);
    NEAR(transforms.repetition.data);
    NEAR(transforms.frequency.data);
    NEAR(transforms.presence.data);
#undef NEAR
    lists_near(&t->allowed);
    lists_near(&t->banned);
    lists_near(&t->bias);
    lists_near(&t->prompt_tokens);
    lists_near(&t->output_tokens);
    h->prompt = near_of(h->prompt);
    h->output = near_of(h->output);
    h->counts = near_of(h->counts);
    return q;
}

static gumbel_status call_size(const gumbel_device *device, const gumbel_problem *p, uint32_t more,
                               size_t *bytes, gumbel_error *error)
{
    gumbel_device *cpu = ((const far_device *)device)->cpu;
    return cpu->backend->call_size(cpu, p, more, bytes, error);
}

static gumbel_status partial(gumbel_device *device, const gumbel_problem *p,
                             gumbel_summary *summaries, void *workspace, gumbel_error *error)
{
    gumbel_device *cpu = ((far_device *)device)->cpu;
    gumbel_problem q = problem_near(p);
    return cpu->backend->partial(cpu, &q, near_of(summaries), near_of(workspace), error);
}

/* As a GPU's: what does not count is not written, and one bad logit spoils no other. */
static gumbel_status edit(gumbel_device *device, const gumbel_problem *p, float *rows,
                          int64_t stride, void *workspace, gumbel_error *error)
{
    gumbel_device *cpu = ((far_device *)device)->cpu;
    gumbel_problem q = problem_near(p);
    size_t bytes, counts = (size_t)(q.end_token - q.first_token);
    int as_they_are = !q.request && q.scale == 1.0f && q.soft_cap == 0.0f;
    (void)near_of(workspace);
    q.sampling.temperature = (gumbel_row_f32){0};
    GUMBEL_FORWARD(cpu->backend->call_size(cpu, &q, GUMBEL_NEED_ROWS, &bytes, error));
    void *local = poisoned_workspace(bytes);
    float *generated = make_zeroed((size_t)(q.batch * q.vocab), sizeof *generated);
    gumbel_status status = (as_they_are ? cpu->backend->store : cpu->backend->process)(
        cpu, &q, generated, q.vocab, local, error);
    for (int64_t b = 0; b < q.batch; b++)
        memcpy((float *)near_of(rows) + b * stride, generated + b * q.vocab,
               counts * sizeof *generated);
    free(generated);
    free(local);
    return status;
}

static gumbel_status bring(gumbel_device *device, void *stream, void *to, const void *from,
                           size_t bytes, gumbel_error *error)
{
    (void)device, (void)error;
    check_stream(stream);
    memcpy(to, near_of(from), bytes);
    return GUMBEL_OK;
}

static gumbel_status put(gumbel_device *device, void *stream, void *to, const void *from,
                         size_t bytes, gumbel_error *error)
{
    (void)device, (void)error;
    check_stream(stream);
    memcpy(near_of(to), from, bytes);
    return GUMBEL_OK;
}

static gumbel_status look(gumbel_device *device, void *stream, int *done, gumbel_error *error)
{
    (void)error;
    check_stream(stream);
    *done = !((far_device *)device)->hangs;
    return GUMBEL_OK;
}

far_device *far_device_make(gumbel_device *cpu)
{
    static const gumbel_rank_calls ranks = {.edit = edit, .bring = bring, .put = put, .look = look};
    far_device *generated = make_zeroed(1, sizeof *generated);
    generated->table = (gumbel_backend){.serves = cpu->backend->serves,
                                        .call_size = call_size,
                                        .partial = partial,
                                        .ranks = &ranks};
    generated->base.backend = &generated->table;
    generated->cpu = cpu;
    return generated;
}

void far_device_free(far_device *generated) { free(generated); }

gumbel_device *far_device_of(far_device *generated) { return &generated->base; }

void far_device_hang(far_device *generated) { generated->hangs = 1; }

/* ---------------------------------------------------------------------------------- calls ---- */

static void lists_far(gumbel_token_lists *lists)
{
    lists->offsets = far_of(lists->offsets);
    lists->ids = far_of(lists->ids);
    lists->values = far_of(lists->values);
}

/* What a call's sampling points at. */
typedef struct far_sampling {
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_history history;
} far_sampling;

static void sampling_far(far_sampling *to, const gumbel_sampling *from)
{
    gumbel_transforms *t = &to->transforms;
    to->sampling = *from;
#define MOVE(field) to->field = far_of(to->field)
    MOVE(sampling.temperature.data);
    MOVE(sampling.seed.data);
    MOVE(sampling.position.data);
    MOVE(sampling.first_sample.data);
    MOVE(sampling.slots.of_row);
    MOVE(sampling.live_rows);
    MOVE(sampling.given.data);
    MOVE(sampling.noise);
    if (from->truncation) {
        to->truncation = *from->truncation;
        to->sampling.truncation = &to->truncation;
        MOVE(truncation.min_p.data);
        MOVE(truncation.top_k.data);
        MOVE(truncation.top_p.data);
    }
    if (!from->transforms)
        return;
    *t = *from->transforms;
    to->sampling.transforms = t;
    MOVE(transforms.mask.data);
    MOVE(transforms.repetition.data);
    MOVE(transforms.frequency.data);
    MOVE(transforms.presence.data);
    lists_far(&t->allowed);
    lists_far(&t->banned);
    lists_far(&t->bias);
    lists_far(&t->prompt_tokens);
    lists_far(&t->output_tokens);
    if (!t->history)
        return;
    to->history = *t->history;
    t->history = &to->history;
    MOVE(history.prompt);
    MOVE(history.output);
    MOVE(history.counts);
#undef MOVE
}

static gumbel_output output_far(const gumbel_output *from)
{
    gumbel_output to = *from;
#define MOVE(field) to.field = far_of(to.field)
    MOVE(tokens);
    MOVE(logprobs);
    MOVE(scores);
    MOVE(lse);
    MOVE(status);
    MOVE(ranks);
    MOVE(kept);
    MOVE(top_ids);
    MOVE(top_logprobs);
    MOVE(top_logits);
    MOVE(best_ids);
    MOVE(best_scores);
#undef MOVE
    return to;
}

static gumbel_head head_far(gumbel_head head)
{
    head.hidden.data = far_of(head.hidden.data);
    head.weight.data = far_of(head.weight.data);
    head.bias.data = far_of(head.bias.data);
    return head;
}

static gumbel_logits logits_far(gumbel_logits logits)
{
    logits.logits.data = far_of(logits.logits.data);
    return logits;
}

gumbel_status far_draw(gumbel_group *group, const request *req, const shard_cut *cut, int32_t rank,
                       int fused, int64_t spare, shard_outcome *into, gumbel_error *error)
{
    gumbel_head head = {0};
    gumbel_logits logits = {0};
    gumbel_sampling of_shard = shards_sampling(req, cut, rank);
    far_sampling s;
    size_t bytes = 0;
    memset(&s, 0, sizeof s);
    sampling_far(&s, &of_shard);
    gumbel_output out = output_far(&into->drawn->output);
    if (fused)
        head = head_far(shards_head(req, cut, rank));
    else
        logits = logits_far(shards_logits(req, cut, rank));
    gumbel_status status = gumbel_group_workspace_size(
        group, fused ? &head : NULL, fused ? NULL : &logits, &s.sampling, &out, &bytes, error);
    void *workspace = poisoned_workspace(status == GUMBEL_OK ? bytes : 64);
    bytes += (size_t)spare;
    outcome_poison(into->drawn);
    status = fused ? gumbel_group_sample(group, far_stream(), &head, &s.sampling, &out,
                                         far_of(workspace), bytes, error)
                   : gumbel_group_sample_logits(group, far_stream(), &logits, &s.sampling, &out,
                                                far_of(workspace), bytes, error);
    free(workspace);
    return status;
}

static gumbel_draft draft_far(const gumbel_draft *from)
{
    gumbel_draft to = *from;
    to.tokens = far_of(to.tokens);
    to.offsets = far_of(to.offsets);
    to.nodes = far_of(to.nodes);
    to.parents = far_of(to.parents);
    to.limit = far_of(to.limit);
    lists_far(&to.stop);
    return to;
}

static gumbel_verified verified_far(const gumbel_verified *from)
{
    gumbel_verified to = *from;
#define MOVE(field) to.field = far_of(to.field)
    MOVE(tokens);
    MOVE(emitted);
    MOVE(accepted);
    MOVE(path);
    MOVE(last_row);
    MOVE(position);
    MOVE(finished);
    MOVE(status);
    MOVE(logprobs);
    MOVE(scores);
    MOVE(histogram);
#undef MOVE
    return to;
}

gumbel_status far_verify(gumbel_group *group, const gumbel_head *head, const gumbel_logits *logits,
                         const gumbel_sampling *sampling, const gumbel_draft *draft,
                         const gumbel_verified *to, gumbel_error *error)
{
    gumbel_head h = head ? head_far(*head) : (gumbel_head){0};
    gumbel_logits l = logits ? logits_far(*logits) : (gumbel_logits){0};
    gumbel_draft d = draft_far(draft);
    gumbel_verified v = verified_far(to);
    gumbel_output rows;
    far_sampling s;
    size_t bytes = 0;
    memset(&s, 0, sizeof s);
    sampling_far(&s, sampling);
    if (to->rows) {
        rows = output_far(to->rows);
        v.rows = &rows;
    }
    gumbel_status status = gumbel_group_verify_workspace_size(
        group, head ? &h : NULL, logits ? &l : NULL, &s.sampling, &d, &v, &bytes, error);
    void *workspace = poisoned_workspace(status == GUMBEL_OK ? bytes : 64);
    status = head ? gumbel_group_verify(group, far_stream(), &h, &s.sampling, &d, &v,
                                        far_of(workspace), bytes, error)
                  : gumbel_group_verify_logits(group, far_stream(), &l, &s.sampling, &d, &v,
                                               far_of(workspace), bytes, error);
    free(workspace);
    return status;
}
