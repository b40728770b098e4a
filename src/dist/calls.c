/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of a group. The library's own entry points check them and come to the group's table; a
 * call that ends before it does so joins the exchange to tell the other ranks.
 */
#include "core/fail.h"
#include "dist/group.h"
#include "dist/transports/bridge.h"
#include "validate/validate.h"

#include <inttypes.h>
#include <stdio.h>

static const uint32_t no_element; /* stands for the data of what has none; it is not read */

static gumbel_device *device_of(const gumbel_group *group)
{
    return (gumbel_device *)(uintptr_t)&group->base;
}

/* A range of tokens as the group's options say; a rank without tokens has one that does not
 * count. */
static gumbel_status fit_range(const gumbel_group *group, int64_t *first_token, int64_t *vocab_size,
                               int64_t rows, const char *name, gumbel_error *error)
{
    const ranks_shard *own = ranks_own_shard(group);
    char field[48];
    snprintf(field, sizeof field, "%s.first_token", name);
    GUMBEL_REFUSE_IF(
        rows != own->rows || (rows > 0 && *first_token != own->first_token), error, field,
        "tokens %" PRId64 " .. + %" PRId64 " are not the rank's shard, %" PRId64 " .. + %" PRId64,
        *first_token, rows, own->first_token, own->rows);
    if (rows == 0)
        *first_token = group->end_token > 1 ? group->end_token - 1 : 0;
    if (rows == 0 && (*vocab_size == 0 || *vocab_size > *first_token))
        *vocab_size = *first_token;
    return GUMBEL_OK;
}

static gumbel_status fit_head(const gumbel_group *group, gumbel_head *h, const gumbel_head *head,
                              gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!head, error, "head", "head is NULL");
    *h = (gumbel_head){0};
    GUMBEL_FORWARD(gumbel_read_options(h, sizeof *h, head, "head", error));
    h->struct_size = sizeof *h;
    GUMBEL_FORWARD(
        fit_range(group, &h->first_token, &h->vocab_size, h->weight.rows, "head", error));
    if (h->weight.rows == 0) {
        h->weight = (gumbel_tensor){&no_element, GUMBEL_FLOAT32, 1, h->hidden.cols, 0, {0, 0}};
        h->bias = (gumbel_tensor){0};
    }
    return GUMBEL_OK;
}

static gumbel_status fit_logits(const gumbel_group *group, gumbel_logits *l,
                                const gumbel_logits *logits, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!logits, error, "logits", "logits is NULL");
    *l = (gumbel_logits){0};
    GUMBEL_FORWARD(gumbel_read_options(l, sizeof *l, logits, "logits", error));
    l->struct_size = sizeof *l;
    GUMBEL_FORWARD(
        fit_range(group, &l->first_token, &l->vocab_size, l->logits.cols, "logits", error));
    if (l->logits.cols == 0)
        l->logits = (gumbel_tensor){&no_element, GUMBEL_FLOAT32, l->logits.rows, 1, 0, {0, 0}};
    return GUMBEL_OK;
}

/* The call's arguments in the shape of the rank's own device, and what all ranks compare of them
 * beside the problem that they become. */
typedef struct fitted {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    const gumbel_head *with_head; /* NULL: logits */
    const gumbel_logits *with_logits;
    const gumbel_sampling *with_sampling;
} fitted;

/* Drop the mask of a rank without rows: no token of its is masked, and the shape of its mask is not
 * that of the row which stands for none. */
static gumbel_status fit_sampling(const gumbel_group *group, fitted *f,
                                  const gumbel_sampling *sampling, gumbel_error *error)
{
    gumbel_sampling *s = &f->sampling;
    gumbel_transforms *t = &f->transforms;
    if (ranks_own_shard(group)->rows > 0 || !sampling)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_options(s, sizeof *s, sampling, "sampling", error));
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

static gumbel_status fit(const gumbel_group *group, fitted *f, const gumbel_head *head,
                         const gumbel_logits *logits, const gumbel_sampling *sampling,
                         int64_t *vocab_size, gumbel_error *error)
{
    *vocab_size = 0;
    f->with_sampling = sampling;
    f->with_head = head ? &f->head : NULL;
    f->with_logits = head ? NULL : &f->logits;
    GUMBEL_FORWARD(head ? fit_head(group, &f->head, head, error)
                        : fit_logits(group, &f->logits, logits, error));
    GUMBEL_FORWARD(fit_sampling(group, f, sampling, error));
    /* A shorter struct of an older caller has these, too. */
    *vocab_size = head ? head->vocab_size : logits->vocab_size;
    return GUMBEL_OK;
}

/* The end of a call that came to `status`: where it did not come to its exchange, join one. */
static gumbel_status settle(gumbel_group *group, gumbel_status status, gumbel_error *found,
                            gumbel_error *error)
{
    /* On a GPU a call that is refused is this rank's alone to know. */
    if (!group->entered && group->table.host_memory) {
        ranks_header header = ranks_new_header(group->step + 1);
        header.status = (int32_t)status;
        memcpy(header.field, found->field, sizeof header.field);
        for (int i = 0; i < RANKS_FIELDS; i++)
            header.digests[i] = RANKS_DIGEST_START;
        gumbel_error joined = {"", ""};
        gumbel_status other = ranks_exchange_headers(group, &header, NULL, NULL, 0, NULL, &joined);
        if (status == GUMBEL_OK && other != GUMBEL_OK) {
            *found = joined;
            status = other;
        }
    }
    if (status != GUMBEL_OK && error)
        *error = *found;
    return status;
}

/* Begin a call. */
static gumbel_status begin(gumbel_group *group, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!group, error, "group", "group is NULL");
    if (group->broken)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an earlier exchange failed");
    GUMBEL_FORWARD(ranks_check_peers(group, error));
    GUMBEL_FORWARD(ranks_check_host_worker(group, error));
    group->entered = 0;
    group->drafted = RANKS_DIGEST_START;
    return GUMBEL_OK;
}

static gumbel_status draw(gumbel_group *group, void *stream, const gumbel_head *head,
                          const gumbel_logits *logits, const gumbel_sampling *sampling,
                          const gumbel_output *output, void *workspace, size_t workspace_bytes,
                          gumbel_error *error)
{
    fitted f;
    gumbel_error found = {"", ""};
    GUMBEL_FORWARD(begin(group, error));
    gumbel_status status = fit(group, &f, head, logits, sampling, &group->vocab_size, &found);
    if (status == GUMBEL_OK && group->bridge)
        status = dist_bridge_draw(group->bridge, stream, f.with_head, f.with_logits, sampling,
                                  output, workspace, workspace_bytes, &found);
    else if (status == GUMBEL_OK)
        status = head ? gumbel_sample(&group->base, stream, &f.head, f.with_sampling, output,
                                      workspace, workspace_bytes, &found)
                      : gumbel_sample_logits(&group->base, stream, &f.logits, f.with_sampling,
                                             output, workspace, workspace_bytes, &found);
    return settle(group, status, &found, error);
}

gumbel_status gumbel_group_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                          const gumbel_logits *logits,
                                          const gumbel_sampling *sampling,
                                          const gumbel_output *output, size_t *bytes,
                                          gumbel_error *error)
{
    fitted f;
    int64_t vocab_size;
    GUMBEL_REFUSE_IF(!group, error, "group", "group is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_REFUSE_IF(!output, error, "output", "output is NULL");
    GUMBEL_FORWARD(fit(group, &f, head, logits, sampling, &vocab_size, error));
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    if (group->bridge)
        return dist_bridge_size(group->bridge, f.with_head, f.with_logits, sampling, output, bytes,
                                error);
    return gumbel_workspace_size(device_of(group), f.with_head, f.with_logits, f.with_sampling,
                                 output, bytes, error);
}

gumbel_status gumbel_group_sample(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_sampling *sampling, const gumbel_output *output,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_head nothing = {.struct_size = sizeof nothing, .weight.rows = -1};
    return draw(group, stream, head ? head : &nothing, NULL, sampling, output, workspace,
                workspace_bytes, error);
}

gumbel_status gumbel_group_sample_logits(gumbel_group *group, void *stream,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling,
                                         const gumbel_output *output, void *workspace,
                                         size_t workspace_bytes, gumbel_error *error)
{
    return draw(group, stream, NULL, logits, sampling, output, workspace, workspace_bytes, error);
}

/* ------------------------------------------------------------------------- verification ---- */

/* What only a rule but COUPLED looks at, and what all ranks must have alike. */
static gumbel_status read_draft(const gumbel_draft *draft, uint64_t *digest, gumbel_error *error)
{
    gumbel_draft d = {0};
    GUMBEL_REFUSE_IF(!draft, error, "draft", "draft is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&d, sizeof d, draft, "draft", error));
    if (d.rule != GUMBEL_RULE_COUPLED && (d.head || d.logits))
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "draft.rule",
                           "a group verifies by GUMBEL_RULE_COUPLED");
    *digest = RANKS_DIGEST_START;
    *digest = ranks_add_digest(*digest, &d.requests, sizeof d.requests);
    *digest = ranks_add_digest(*digest, &d.max_nodes, sizeof d.max_nodes);
    return GUMBEL_OK;
}

/* The same of what the draft's arrays hold, of `rows` rows, once they are known to be sound. */
static void read_drafted(gumbel_group *group, const gumbel_draft *d, int64_t rows)
{
    size_t n = (size_t)rows, requests = (size_t)d->requests;
#define ADD(field, count)                                                                          \
    if (d->field)                                                                                  \
    group->drafted = ranks_add_digest(group->drafted, d->field, (count) * sizeof *d->field)
    ADD(tokens, n);
    ADD(parents, n);
    ADD(offsets, requests + 1);
    ADD(nodes, requests);
    ADD(limit, requests);
#undef ADD
    if (d->stop.offsets)
        group->drafted = ranks_add_digest(group->drafted, d->stop.ids,
                                     (size_t)d->stop.offsets[requests] * sizeof *d->stop.ids);
}

static gumbel_status verify(gumbel_group *group, void *stream, const gumbel_head *head,
                            const gumbel_logits *logits, const gumbel_sampling *sampling,
                            const gumbel_draft *draft, const gumbel_verified *verified,
                            void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    fitted f;
    size_t needed;
    dist_bridged brought;
    gumbel_error found = {"", ""};
    GUMBEL_FORWARD(begin(group, error));
    gumbel_status status = fit(group, &f, head, logits, sampling, &group->vocab_size, &found);
    sampling = f.with_sampling;
    if (status == GUMBEL_OK)
        status = read_draft(draft, &group->drafted, &found);
    if (status == GUMBEL_OK && group->bridge) {
        status =
            dist_bridge_verify_begin(group->bridge, stream, f.with_head, f.with_logits, sampling,
                                     draft, verified, workspace, workspace_bytes, &brought, &found);
        stream = NULL;
        sampling = &brought.sampling;
        draft = &brought.draft;
        verified = &brought.verified;
        workspace = brought.workspace;
        workspace_bytes = brought.bytes;
    }
    if (status == GUMBEL_OK)
        status = gumbel_verify_workspace_size(&group->base, f.with_head, f.with_logits, sampling,
                                              draft, verified, &needed, &found);
    if (status == GUMBEL_OK) {
        if (group->table.host_memory)
            read_drafted(group, draft, head ? f.head.hidden.rows : f.logits.logits.rows);
        status = head ? gumbel_verify(&group->base, stream, &f.head, sampling, draft, verified,
                                      workspace, workspace_bytes, &found)
                      : gumbel_verify_logits(&group->base, stream, &f.logits, sampling, draft,
                                             verified, workspace, workspace_bytes, &found);
    }
    if (status == GUMBEL_OK && group->bridge)
        status = dist_bridge_end(group->bridge, &found);
    return settle(group, status, &found, error);
}

gumbel_status gumbel_group_verify(gumbel_group *group, void *stream, const gumbel_head *head,
                                  const gumbel_sampling *sampling, const gumbel_draft *draft,
                                  const gumbel_verified *verified, void *workspace,
                                  size_t workspace_bytes, gumbel_error *error)
{
    gumbel_head nothing = {.struct_size = sizeof nothing, .weight.rows = -1};
    return verify(group, stream, head ? head : &nothing, NULL, sampling, draft, verified, workspace,
                  workspace_bytes, error);
}

gumbel_status gumbel_group_verify_logits(gumbel_group *group, void *stream,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, const gumbel_draft *draft,
                                         const gumbel_verified *verified, void *workspace,
                                         size_t workspace_bytes, gumbel_error *error)
{
    return verify(group, stream, NULL, logits, sampling, draft, verified, workspace,
                  workspace_bytes, error);
}

gumbel_status gumbel_group_verify_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                                 const gumbel_logits *logits,
                                                 const gumbel_sampling *sampling,
                                                 const gumbel_draft *draft,
                                                 const gumbel_verified *verified, size_t *bytes,
                                                 gumbel_error *error)
{
    fitted f;
    int64_t vocab_size;
    uint64_t digest;
    GUMBEL_REFUSE_IF(!group, error, "group", "group is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(fit(group, &f, head, logits, sampling, &vocab_size, error));
    GUMBEL_FORWARD(read_draft(draft, &digest, error));
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    if (group->bridge)
        return dist_bridge_verify_size(group->bridge, f.with_head, f.with_logits, sampling, draft,
                                       verified, bytes, error);
    return gumbel_verify_workspace_size(device_of(group), f.with_head, f.with_logits,
                                        f.with_sampling, draft, verified, bytes, error);
}
