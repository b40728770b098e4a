/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_drafts.h"

#include <stdlib.h>
#include <string.h>

/* Rows of row parameters and histories: slots, or requests. */
static size_t places_of(const cycle *c)
{
    return c->sampling.slots.of_row ? (size_t)c->sampling.slots.count
                                    : (size_t)c->of->plan.requests;
}

#define COPY(field, count)                                                                         \
    (field) = gpu_copies_add(&generated->copies, (field), (size_t)(count) * sizeof *(field))
#define COPY_ROWS(rows) COPY((rows).data, places)

static void copy_transforms(gpu_cycle *generated)
{
    cycle *c = &generated->req;
    gumbel_transforms *t = &c->transforms;
    gumbel_history *h = &c->history;
    size_t places = places_of(c), words = (size_t)texts_words(c->of);
    COPY(t->mask.data, (size_t)c->rows * words);
    gpu_copies_add_all_lists(&generated->copies, t, (size_t)c->of->plan.requests);
    COPY_ROWS(t->repetition);
    COPY_ROWS(t->frequency);
    COPY_ROWS(t->presence);
    if (t->history) {
        COPY(h->prompt, places * words);
        COPY(h->output, places * words);
        h->counts = gpu_copies_add(&generated->copies, h->counts,
                                   places * (size_t)h->vocab_size * sizeof(uint16_t));
        t->history = h;
    }
    c->sampling.transforms = t;
}

static void copy_sampling(gpu_cycle *generated)
{
    cycle *c = &generated->req;
    gumbel_sampling *s = &c->sampling;
    size_t places = places_of(c);
    COPY_ROWS(s->temperature);
    COPY_ROWS(s->seed);
    COPY_ROWS(s->position);
    COPY_ROWS(s->first_sample);
    if (s->transforms)
        copy_transforms(generated);
    if (s->truncation) {
        gumbel_truncation *t = &generated->truncation;
        *t = *s->truncation;
        COPY_ROWS(t->min_p);
        COPY_ROWS(t->top_k);
        COPY_ROWS(t->top_p);
        s->truncation = t;
    }
    COPY(s->live_rows, 1);
    COPY(s->slots.of_row, c->of->plan.requests);
}

static void copy_tensor(gpu_cycle *generated, gumbel_tensor *t)
{
    t->data = gpu_copies_add(&generated->copies, t->data,
                             (size_t)(t->rows * t->cols) * dtype_size(t->dtype));
}

/* The distributions that drew the drafts, for all rules except COUPLED. */
static void copy_proposal(gpu_cycle *generated)
{
    cycle *c = &generated->req;
    gumbel_draft *d = &c->draft;
    if (!d->sampling)
        return;
    c->drafted = c->sampling;
    c->drafted.slots = (gumbel_slots){NULL, 0};
    c->drafted.live_rows = NULL;
    c->drafted.domain = GUMBEL_DOMAIN_DRAFT;
    d->sampling = &c->drafted;
    c->draft_head.weight = c->head.weight;
    if (d->head) {
        copy_tensor(generated, &c->draft_head.hidden);
        d->head = &c->draft_head;
    }
    if (d->logits) {
        copy_tensor(generated, &c->draft_logits.logits);
        d->logits = &c->draft_logits;
    }
}

gpu_cycle *gpu_cycle_make(const cycle *host)
{
    gpu_cycle *generated = make_zeroed(1, sizeof *generated);
    cycle *c = &generated->req;
    gumbel_draft *d = &c->draft;
    *c = *host;
    if (c->of->plan.hidden_size > 0) {
        copy_tensor(generated, &c->head.hidden);
        copy_tensor(generated, &c->head.weight);
    } else {
        copy_tensor(generated, &c->logits.logits);
    }
    copy_sampling(generated);
    copy_proposal(generated);
    COPY(d->tokens, c->rows);
    COPY(d->offsets, d->requests + 1);
    COPY(d->nodes, d->requests);
    COPY(d->parents, c->rows);
    COPY(d->limit, d->requests);
    gpu_copies_add_lists(&generated->copies, &d->stop, (size_t)c->of->plan.requests);
    return generated;
}

void gpu_cycle_free(gpu_cycle *generated)
{
    gpu_copies_free(&generated->copies);
    gpu_free(generated->workspace);
    free(generated);
}

/* The arrays of a verification, and their bytes. */
#define EACH_ARRAY(F, v)                                                                           \
    F((v)->tokens, (v)->all)                                                                       \
    F((v)->emitted, (v)->requests)                                                                 \
    F((v)->accepted, (v)->requests)                                                                \
    F((v)->path, (v)->all)                                                                         \
    F((v)->last_row, (v)->requests)                                                                \
    F((v)->finished, (v)->requests)                                                                \
    F((v)->status, (v)->requests)                                                                  \
    F((v)->position, (v)->places)                                                                  \
    F((v)->histogram, (v)->nodes)                                                                  \
    F((v)->logprobs, (v)->all)                                                                     \
    F((v)->scores, (v)->all)

verified_arrays *gpu_verified_make(const verified_arrays *like)
{
    verified_arrays *v = make_zeroed(1, sizeof *v);
    *v = *like;
    v->owned_count = 0;
#define PUT(field, count)                                                                          \
    v->owned[v->owned_count++] = (field) = gpu_copy((field), (size_t)(count) * sizeof *(field));
    EACH_ARRAY(PUT, v)
#undef PUT
    verified_point(v);
    return v;
}

void gpu_verified_fetch(const verified_arrays *from, verified_arrays *into)
{
    const verified_arrays *v = from;
    int i = 0;
#define FETCH(field, count) gpu_fetch(into->owned[i++], (field), (size_t)(count) * sizeof *(field));
    EACH_ARRAY(FETCH, v)
#undef FETCH
}

void gpu_verified_free(verified_arrays *generated)
{
    for (int i = 0; i < generated->owned_count; i++)
        gpu_free(generated->owned[i]);
    free(generated);
}

void gpu_cycle_prepare(gpu_cycle *generated, const verified_arrays *into)
{
    const cycle *c = &generated->req;
    int fused = c->of->plan.hidden_size > 0;
    gumbel_error error = {"", ""};
    gumbel_status status = gumbel_verify_workspace_size(
        gpu, fused ? &c->head : NULL, fused ? NULL : &c->logits, &c->sampling, &c->draft, &into->to,
        &generated->workspace_bytes, &error);
    if (report_call("gumbel_verify_workspace_size", status, &error))
        exit(1);
    generated->workspace = gpu_hostile(generated->workspace_bytes);
}

void gpu_cycle_verify(CUstream stream, const gpu_cycle *generated, const verified_arrays *into)
{
    const cycle *c = &generated->req;
    gumbel_error error = {"", ""};
    gumbel_status status =
        c->of->plan.hidden_size > 0
            ? gumbel_verify(gpu, stream, &c->head, &c->sampling, &c->draft, &into->to,
                            generated->workspace, generated->workspace_bytes, &error)
            : gumbel_verify_logits(gpu, stream, &c->logits, &c->sampling, &c->draft, &into->to,
                                   generated->workspace, generated->workspace_bytes, &error);
    if (report_call("gumbel_verify", status, &error))
        exit(1);
}

/* Copies the heads, or the logits, of wide rows. */
static void copy_wide_models(gpu_wide *generated)
{
    wide_drafts *w = &generated->req;
#define PUT(pointer, bytes) (pointer) = gpu_copies_add(&generated->copies, (pointer), bytes)
    if (w->hidden_size > 0) {
        const size_t row = (size_t)w->hidden_size * dtype_size(w->target_head.weight.dtype);
        const size_t vocab = (size_t)w->target_head.weight.rows, rows = (size_t)w->rows;
        PUT(w->target_head.hidden.data, rows * row);
        PUT(w->target_head.weight.data, vocab * row);
        PUT(w->target_head.bias.data, vocab * sizeof(float));
        PUT(w->draft_head.hidden.data, rows * row);
        PUT(w->draft_head.weight.data, vocab * row);
        w->draft_head.bias.data = w->target_head.bias.data;
        w->draft.head = &w->draft_head;
    } else {
        PUT(w->target.logits.data, w->target_bytes);
        PUT(w->drafted.logits.data, w->draft_bytes);
        w->draft.logits = &w->drafted;
    }
}

gpu_wide *gpu_wide_make(const wide_drafts *host, const verified_arrays *into)
{
    gpu_wide *generated = make_zeroed(1, sizeof *generated);
    wide_drafts *w = &generated->req;
    const size_t R = (size_t)host->requests, rows = (size_t)host->rows;
    *w = *host;
    copy_wide_models(generated);
    PUT(w->sampling.temperature.data, R * sizeof(float));
    PUT(w->sampling.seed.data, R * sizeof(uint64_t));
    PUT(w->sampling.position.data, R * sizeof(uint64_t));
    PUT(w->sampling.first_sample.data, R * sizeof(uint32_t));
    PUT(w->draft_sampling.temperature.data, R * sizeof(float));
    PUT(w->draft.tokens, rows * sizeof(int32_t));
    PUT(w->draft.offsets, (R + 1) * sizeof(int32_t));
    PUT(w->draft.nodes, R * sizeof(int32_t));
    PUT(w->draft.lse, rows * sizeof(float));
    PUT(w->draft.logprobs, rows * sizeof(float));
#undef PUT
    w->draft_sampling.seed = w->sampling.seed;
    w->draft_sampling.position = w->sampling.position;
    w->draft_sampling.first_sample = w->sampling.first_sample;
    w->draft.sampling = &w->draft_sampling;
    const gumbel_head *head = w->hidden_size > 0 ? &w->target_head : NULL;
    gumbel_error error = {"", ""};
    gumbel_status status =
        gumbel_verify_workspace_size(gpu, head, head ? NULL : &w->target, &w->sampling, &w->draft,
                                     &into->to, &generated->workspace_bytes, &error);
    if (report_call("gumbel_verify_workspace_size", status, &error))
        exit(1);
    generated->workspace = gpu_hostile(generated->workspace_bytes);
    return generated;
}

void gpu_wide_free(gpu_wide *generated)
{
    gpu_copies_free(&generated->copies);
    gpu_free(generated->workspace);
    free(generated);
}

void gpu_wide_verify(CUstream stream, const gpu_wide *generated, const verified_arrays *into)
{
    const wide_drafts *w = &generated->req;
    gumbel_error error = {"", ""};
    gumbel_status status =
        w->hidden_size > 0
            ? gumbel_verify(gpu, stream, &w->target_head, &w->sampling, &w->draft, &into->to,
                            generated->workspace, generated->workspace_bytes, &error)
            : gumbel_verify_logits(gpu, stream, &w->target, &w->sampling, &w->draft, &into->to,
                                   generated->workspace, generated->workspace_bytes, &error);
    if (report_call("gumbel_verify", status, &error))
        exit(1);
}
