/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of a group: arguments of the shard are adapted to the rank's device, and the library's
 * own entry points check them and call the group's backend table. On CPUs a call that ends before
 * its exchange joins that of the other ranks, so that these get its error.
 */
#include "core/fail.h"
#include "ranks/group.h"
#include "validate/validate.h"

#include <inttypes.h>
#include <stdio.h>

static const uint32_t no_element; /* data of empty tensors; never read */

static gumbel_device *device_of(const gumbel_group *group)
{
    return (gumbel_device *)(uintptr_t)&group->base;
}

/* Checks that a range is the rank's shard. A rank without tokens gets one token of padding. */
static gumbel_status adapt_range(const gumbel_group *group, int64_t *first_token,
                                 int64_t *vocab_size, int64_t rows, const char *name,
                                 gumbel_error *error)
{
    const ranks_shard *own = ranks_own_shard(group);
    GUMBEL_REFUSE_IF(rows != own->rows || (rows > 0 && *first_token != own->first_token), error,
                     gumbel_format_field("%s.first_token", name).text,
                     "tokens %" PRId64 " .. + %" PRId64 " are not the rank's shard, %" PRId64
                     " .. + %" PRId64,
                     *first_token, rows, own->first_token, own->rows);
    if (rows == 0)
        *first_token = group->end_token > 1 ? group->end_token - 1 : 0;
    if (rows == 0 && (*vocab_size == 0 || *vocab_size > *first_token))
        *vocab_size = *first_token;
    return GUMBEL_OK;
}

static gumbel_status adapt_head(const gumbel_group *group, gumbel_head *h, const gumbel_head *head,
                                gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!head, error, "head", "is NULL");
    *h = (gumbel_head){0};
    GUMBEL_FORWARD(gumbel_read_options(h, sizeof *h, head, "head", error));
    h->struct_size = sizeof *h;
    GUMBEL_FORWARD(
        adapt_range(group, &h->first_token, &h->vocab_size, h->weight.rows, "head", error));
    if (h->weight.rows == 0) {
        h->weight = (gumbel_tensor){&no_element, GUMBEL_FLOAT32, 1, h->hidden.cols, 0, {0, 0}};
        h->bias = (gumbel_tensor){0};
    }
    return GUMBEL_OK;
}

static gumbel_status adapt_logits(const gumbel_group *group, gumbel_logits *l,
                                  const gumbel_logits *logits, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!logits, error, "logits", "is NULL");
    *l = (gumbel_logits){0};
    GUMBEL_FORWARD(gumbel_read_options(l, sizeof *l, logits, "logits", error));
    l->struct_size = sizeof *l;
    GUMBEL_FORWARD(
        adapt_range(group, &l->first_token, &l->vocab_size, l->logits.cols, "logits", error));
    if (l->logits.cols == 0)
        l->logits = (gumbel_tensor){&no_element, GUMBEL_FLOAT32, l->logits.rows, 1, 0, {0, 0}};
    return GUMBEL_OK;
}

/* A call's arguments, adapted to the rank's own device. */
typedef struct adapted_call {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    const gumbel_head *with_head; /* NULL: logits */
    const gumbel_logits *with_logits;
    const gumbel_sampling *with_sampling;
} adapted_call;

/* Refuses a table of token ids, and drops the mask of a rank without rows: its shape is not that of
 * the padding token. */
static gumbel_status adapt_sampling(const gumbel_group *group, adapted_call *f,
                                    const gumbel_sampling *sampling, gumbel_error *error)
{
    gumbel_sampling *s = &f->sampling;
    gumbel_transforms *t = &f->transforms;
    if (!sampling)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_options(s, sizeof *s, sampling, "sampling", error));
    GUMBEL_REFUSE_IF(s->token_ids, error, "sampling.token_ids",
                     "must be NULL: ranks hold shards of the vocabulary");
    if (ranks_own_shard(group)->rows > 0)
        return GUMBEL_OK;
    s->struct_size = sizeof *s;
    f->with_sampling = s;
    if (!s->transforms)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_options(t, sizeof *t, s->transforms, "sampling.transforms", error));
    t->struct_size = sizeof *t;
    t->mask = (gumbel_row_i32){NULL, 0};
    s->transforms = t;
    return GUMBEL_OK;
}

static gumbel_status adapt_call(const gumbel_group *group, adapted_call *f, const gumbel_head *head,
                                const gumbel_logits *logits, const gumbel_sampling *sampling,
                                int64_t *vocab_size, gumbel_error *error)
{
    *vocab_size = 0;
    f->with_sampling = sampling;
    f->with_head = head ? &f->head : NULL;
    f->with_logits = head ? NULL : &f->logits;
    GUMBEL_FORWARD(head ? adapt_head(group, &f->head, head, error)
                        : adapt_logits(group, &f->logits, logits, error));
    GUMBEL_FORWARD(adapt_sampling(group, f, sampling, error));
    /* Structs of older callers have these fields, too. */
    *vocab_size = head ? head->vocab_size : logits->vocab_size;
    return GUMBEL_OK;
}

/* Ends a call with `status`. A call on CPUs that did not come to its exchange joins it here. */
static gumbel_status end_call(gumbel_group *group, gumbel_status status, gumbel_error *own_error,
                              gumbel_error *error)
{
    /* On GPUs the error is returned on this rank alone. */
    if (!group->exchanged && group->table.host_memory) {
        ranks_header header = ranks_new_header(group->step + 1);
        header.status = (int32_t)status;
        memcpy(header.field, own_error->field, sizeof header.field);
        for (int i = 0; i < RANKS_FIELDS; i++)
            header.digests[i] = RANKS_DIGEST_START;
        gumbel_error joined = {"", ""};
        gumbel_status other = ranks_exchange_headers(group, &header, NULL, NULL, 0, NULL, &joined);
        if (status == GUMBEL_OK && other != GUMBEL_OK) {
            *own_error = joined;
            status = other;
        }
    }
    if (status != GUMBEL_OK && error)
        *error = *own_error;
    return status;
}

static gumbel_status begin_call(gumbel_group *group, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!group, error, "group", "is NULL");
    if (group->broken)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an earlier exchange failed");
    GUMBEL_FORWARD(ranks_check_peers(group, error));
    GUMBEL_FORWARD(ranks_check_host_worker(group, error));
    group->exchanged = 0;
    group->draft_digest = RANKS_DIGEST_START;
    return GUMBEL_OK;
}

static gumbel_status sample_shard(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_logits *logits, const gumbel_sampling *sampling,
                                  const gumbel_output *output, void *workspace,
                                  size_t workspace_bytes, gumbel_error *error)
{
    adapted_call f;
    gumbel_error own_error = {"", ""};
    GUMBEL_FORWARD(begin_call(group, error));
    gumbel_status status =
        adapt_call(group, &f, head, logits, sampling, &group->vocab_size, &own_error);
    if (status == GUMBEL_OK)
        status = head ? gumbel_sample(&group->base, stream, &f.head, f.with_sampling, output,
                                      workspace, workspace_bytes, &own_error)
                      : gumbel_sample_logits(&group->base, stream, &f.logits, f.with_sampling,
                                             output, workspace, workspace_bytes, &own_error);
    return end_call(group, status, &own_error, error);
}

/* Checks and adapts a call that is described and not made. */
static gumbel_status adapt_described_call(const gumbel_group *group, adapted_call *f,
                                          const gumbel_head *head, const gumbel_logits *logits,
                                          const gumbel_sampling *sampling,
                                          const gumbel_output *output, gumbel_error *error)
{
    int64_t vocab_size;
    GUMBEL_REFUSE_IF(!group, error, "group", "is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "set either head or logits, and not both");
    GUMBEL_REFUSE_IF(!output, error, "output", "is NULL");
    return adapt_call(group, f, head, logits, sampling, &vocab_size, error);
}

gumbel_status gumbel_group_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                          const gumbel_logits *logits,
                                          const gumbel_sampling *sampling,
                                          const gumbel_output *output, size_t *bytes,
                                          gumbel_error *error)
{
    adapted_call f;
    GUMBEL_FORWARD(adapt_described_call(group, &f, head, logits, sampling, output, error));
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    return gumbel_workspace_size(device_of(group), f.with_head, f.with_logits, f.with_sampling,
                                 output, bytes, error);
}

gumbel_status gumbel_group_explain(const gumbel_group *group, const gumbel_head *head,
                                   const gumbel_logits *logits, const gumbel_sampling *sampling,
                                   const gumbel_output *output, char *text, size_t size,
                                   gumbel_error *error)
{
    adapted_call f;
    GUMBEL_FORWARD(adapt_described_call(group, &f, head, logits, sampling, output, error));
    return gumbel_explain(device_of(group), f.with_head, f.with_logits, f.with_sampling, output,
                          text, size, error);
}

gumbel_status gumbel_group_sample(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_sampling *sampling, const gumbel_output *output,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_head nothing = {.struct_size = sizeof nothing, .weight.rows = -1};
    return sample_shard(group, stream, head ? head : &nothing, NULL, sampling, output, workspace,
                        workspace_bytes, error);
}

gumbel_status gumbel_group_sample_logits(gumbel_group *group, void *stream,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling,
                                         const gumbel_output *output, void *workspace,
                                         size_t workspace_bytes, gumbel_error *error)
{
    return sample_shard(group, stream, NULL, logits, sampling, output, workspace, workspace_bytes,
                        error);
}

/* ------------------------------------------------------------------------- verification ---- */

/* Refuses all rules but COUPLED, and adds sizes, which must be equal on all ranks, to *digest. */
static gumbel_status read_draft(const gumbel_draft *draft, uint64_t *digest, gumbel_error *error)
{
    gumbel_draft d = {0};
    GUMBEL_REFUSE_IF(!draft, error, "draft", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&d, sizeof d, draft, "draft", error));
    if (d.rule != GUMBEL_RULE_COUPLED && (d.head || d.logits))
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "draft.rule",
                           "a group supports GUMBEL_RULE_COUPLED only");
    *digest = RANKS_DIGEST_START;
    *digest = ranks_add_digest(*digest, &d.requests, sizeof d.requests);
    *digest = ranks_add_digest(*digest, &d.max_nodes, sizeof d.max_nodes);
    return GUMBEL_OK;
}

/* Adds the draft's arrays, of `rows` rows, which were checked. */
static void digest_draft(gumbel_group *group, const gumbel_draft *d, int64_t rows)
{
    size_t n = (size_t)rows, requests = (size_t)d->requests;
#define ADD(field, count)                                                                          \
    if (d->field)                                                                                  \
    group->draft_digest =                                                                          \
        ranks_add_digest(group->draft_digest, d->field, (count) * sizeof *d->field)
    ADD(tokens, n);
    ADD(parents, n);
    ADD(offsets, requests + 1);
    ADD(nodes, requests);
    ADD(limit, requests);
#undef ADD
    if (d->stop.offsets)
        group->draft_digest =
            ranks_add_digest(group->draft_digest, d->stop.ids,
                             (size_t)d->stop.offsets[requests] * sizeof *d->stop.ids);
}

static gumbel_status verify_shard(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_logits *logits, const gumbel_sampling *sampling,
                                  const gumbel_draft *draft, const gumbel_verified *verified,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    adapted_call f;
    size_t needed;
    gumbel_error own_error = {"", ""};
    GUMBEL_FORWARD(begin_call(group, error));
    gumbel_status status =
        adapt_call(group, &f, head, logits, sampling, &group->vocab_size, &own_error);
    sampling = f.with_sampling;
    if (status == GUMBEL_OK)
        status = read_draft(draft, &group->draft_digest, &own_error);
    if (status == GUMBEL_OK)
        status = gumbel_verify_workspace_size(&group->base, f.with_head, f.with_logits, sampling,
                                              draft, verified, &needed, &own_error);
    if (status == GUMBEL_OK) {
        if (group->table.host_memory)
            digest_draft(group, draft, head ? f.head.hidden.rows : f.logits.logits.rows);
        status = head ? gumbel_verify(&group->base, stream, &f.head, sampling, draft, verified,
                                      workspace, workspace_bytes, &own_error)
                      : gumbel_verify_logits(&group->base, stream, &f.logits, sampling, draft,
                                             verified, workspace, workspace_bytes, &own_error);
    }
    return end_call(group, status, &own_error, error);
}

gumbel_status gumbel_group_verify(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_sampling *sampling, const gumbel_draft *draft,
                                  const gumbel_verified *verified, void *workspace,
                                  size_t workspace_bytes, gumbel_error *error)
{
    gumbel_head nothing = {.struct_size = sizeof nothing, .weight.rows = -1};
    return verify_shard(group, stream, head ? head : &nothing, NULL, sampling, draft, verified,
                        workspace, workspace_bytes, error);
}

gumbel_status gumbel_group_verify_logits(gumbel_group *group, void *stream,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, const gumbel_draft *draft,
                                         const gumbel_verified *verified, void *workspace,
                                         size_t workspace_bytes, gumbel_error *error)
{
    return verify_shard(group, stream, NULL, logits, sampling, draft, verified, workspace,
                        workspace_bytes, error);
}

gumbel_status gumbel_group_verify_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                                 const gumbel_logits *logits,
                                                 const gumbel_sampling *sampling,
                                                 const gumbel_draft *draft,
                                                 const gumbel_verified *verified, size_t *bytes,
                                                 gumbel_error *error)
{
    adapted_call f;
    int64_t vocab_size;
    uint64_t digest;
    GUMBEL_REFUSE_IF(!group, error, "group", "is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "set either head or logits, and not both");
    GUMBEL_FORWARD(adapt_call(group, &f, head, logits, sampling, &vocab_size, error));
    GUMBEL_FORWARD(read_draft(draft, &digest, error));
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    return gumbel_verify_workspace_size(device_of(group), f.with_head, f.with_logits,
                                        f.with_sampling, draft, verified, bytes, error);
}
