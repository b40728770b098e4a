/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_draft.h"

#include "core/fail.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

gumbel_status gumbel_read_draft(gumbel_draft *into, const gumbel_draft *draft, int64_t rows,
                                gumbel_error *error)
{
    int64_t rows_max;
    GUMBEL_REFUSE_IF(!draft, error, "draft", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, draft, "draft", error));
    GUMBEL_REFUSE_IF(into->requests < (rows > 0) || into->requests > INT32_MAX, error,
                     "draft.requests", "is %" PRId64 "; it must be in %d..2^31 - 1", into->requests,
                     rows > 0);
    GUMBEL_REFUSE_IF(into->max_nodes < 1 || into->max_nodes > GUMBEL_NODES_MAX, error,
                     "draft.max_nodes", "is %d; it must be in 1..%d", (int)into->max_nodes,
                     GUMBEL_NODES_MAX);
    GUMBEL_REFUSE_IF((int)into->rule < 0 || into->rule > GUMBEL_RULE_BLOCK, error, "draft.rule",
                     "is %d; it must be a gumbel_rule", (int)into->rule);
    GUMBEL_REFUSE_IF(into->head && into->logits, error, "draft.logits",
                     "head and logits are both set; set the one that the drafts were drawn from");
    GUMBEL_REFUSE_IF(into->rule != GUMBEL_RULE_COUPLED && into->parents, error, "draft.parents",
                     "only GUMBEL_RULE_COUPLED supports trees");
    GUMBEL_REFUSE_IF(into->rule != GUMBEL_RULE_COUPLED && into->node_position, error,
                     "draft.node_position", "only GUMBEL_RULE_COUPLED supports it");
    GUMBEL_FORWARD(gumbel_check_aligned(into->node_position, sizeof *into->node_position,
                                        "draft.node_position", error));
    GUMBEL_REFUSE_IF(rows > INT32_MAX, error, "draft", "the draft has 2^31 rows or more");
    rows_max = into->requests * into->max_nodes;
    GUMBEL_REFUSE_IF(!into->offsets && rows_max > rows, error, "draft.offsets",
                     "%" PRId64 " requests of %d nodes take %" PRId64
                     " rows, but there are %" PRId64 "; set offsets if requests have fewer nodes",
                     into->requests, (int)into->max_nodes, rows_max, rows);
    GUMBEL_REFUSE_IF(!into->tokens && rows > 0 && into->max_nodes > 1, error, "draft.tokens",
                     "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(into->tokens, sizeof *into->tokens, "draft.tokens", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(into->offsets, sizeof *into->offsets, "draft.offsets", error));
    GUMBEL_FORWARD(gumbel_check_aligned(into->nodes, sizeof *into->nodes, "draft.nodes", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(into->parents, sizeof *into->parents, "draft.parents", error));
    GUMBEL_FORWARD(gumbel_check_aligned(into->limit, sizeof *into->limit, "draft.limit", error));
    GUMBEL_REFUSE_IF(!into->lse != !into->logprobs, error,
                     into->lse ? "draft.logprobs" : "draft.lse",
                     "only one of lse and logprobs is set: set both, or neither");
    GUMBEL_FORWARD(gumbel_check_aligned(into->lse, sizeof *into->lse, "draft.lse", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(into->logprobs, sizeof *into->logprobs, "draft.logprobs", error));
    return gumbel_check_lists(&into->stop, 0, "draft.stop", error);
}

gumbel_status gumbel_read_verified(gumbel_verified *into, const gumbel_verified *verified,
                                   int64_t requests, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!verified, error, "verified", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, verified, "verified", error));
    const struct {
        const void *data;
        size_t size;
        const char *field;
    } arrays[] = {{into->tokens, sizeof *into->tokens, "verified.tokens"},
                  {into->emitted, sizeof *into->emitted, "verified.emitted"},
                  {into->accepted, sizeof *into->accepted, "verified.accepted"},
                  {into->path, sizeof *into->path, "verified.path"},
                  {into->last_row, sizeof *into->last_row, "verified.last_row"},
                  {into->position, sizeof *into->position, "verified.position"},
                  {into->finished, sizeof *into->finished, "verified.finished"},
                  {into->status, sizeof *into->status, "verified.status"},
                  {into->logprobs, sizeof *into->logprobs, "verified.logprobs"},
                  {into->scores, sizeof *into->scores, "verified.scores"},
                  {into->histogram, sizeof *into->histogram, "verified.histogram"}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        GUMBEL_REFUSE_IF(i < 2 && !arrays[i].data && requests > 0, error, arrays[i].field,
                         "the pointer is NULL");
        GUMBEL_FORWARD(
            gumbel_check_aligned(arrays[i].data, arrays[i].size, arrays[i].field, error));
    }
    return GUMBEL_OK;
}

/* Checks the nodes of a request, in host memory. */
static gumbel_status check_host_nodes(const gumbel_draft *d, int64_t r, int64_t rows,
                                      gumbel_error *error)
{
    int64_t first = r * d->max_nodes, count = d->max_nodes;
    if (d->offsets) {
        int64_t end = d->offsets[r + 1];
        first = d->offsets[r];
        count = end - first;
        GUMBEL_REFUSE_IF(first < 0 || count < 0 || end > rows, error, "draft.offsets",
                         "offsets[%" PRId64 "] is %d, and the next is %" PRId64
                         "; offsets must not decrease, and must be in 0..%" PRId64,
                         r, (int)d->offsets[r], end, rows);
        GUMBEL_REFUSE_IF(count > d->max_nodes, error, "draft.offsets",
                         "request %" PRId64 " has %" PRId64 " rows, more than max_nodes %d", r,
                         count, (int)d->max_nodes);
    }
    if (d->nodes) {
        GUMBEL_REFUSE_IF(d->nodes[r] < 0 || d->nodes[r] > count, error, "draft.nodes",
                         "nodes[%" PRId64 "] is %d; it must be in 0..%" PRId64, r, (int)d->nodes[r],
                         count);
        count = d->nodes[r];
    }
    for (int64_t j = 1; j < count && d->parents; j++)
        GUMBEL_REFUSE_IF(
            d->parents[first + j] < 0 || d->parents[first + j] >= j, error, "draft.parents",
            "parents[%" PRId64 "] is %d; the parent of node %" PRId64 " must be in 0..%" PRId64,
            first + j, (int)d->parents[first + j], j, j - 1);
    GUMBEL_REFUSE_IF(d->limit && d->limit[r] < 0, error, "draft.limit",
                     "limit[%" PRId64 "] is %d; it must be >= 0", r, (int)d->limit[r]);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_draft(const gumbel_draft *draft, const int32_t *live_rows,
                                      int64_t rows, gumbel_error *error)
{
    int64_t live = live_rows ? *live_rows : draft->requests;
    int has_values = draft->offsets || draft->nodes || draft->parents || draft->limit;
    for (int64_t r = 0; r < live && has_values; r++)
        GUMBEL_FORWARD(check_host_nodes(draft, r, rows, error));
    return gumbel_check_host_lists(&draft->stop, live, "draft.stop", error);
}

/* ------------------------------------------------------------------ the draft model's call ---- */

/* Prefixes the field of an error with "draft.". */
static gumbel_status prefix_field(gumbel_status status, gumbel_error *error)
{
    char field[sizeof error->field];
    if (status == GUMBEL_OK || !error)
        return status;
    snprintf(field, sizeof field, "draft.%.*s", (int)sizeof field - 7, error->field);
    memcpy(error->field, field, sizeof field);
    return status;
}

/* Returns whether REJECTION or BLOCK draws noise from this domain. BLOCK uses one domain for each
 * node: the bits above the lowest 8 are the node's number in its chain. */
static int is_rule_domain(uint32_t domain)
{
    return (domain & 0xff) == GUMBEL_DOMAIN_ACCEPT || (domain & 0xff) == GUMBEL_DOMAIN_RESIDUAL;
}

/* Rejects parameters that only the target's call may set, parameters that drafts do not support,
 * and domains whose noise would be used twice. */
static gumbel_status check_draft_sampling(const gumbel_sampling *s, const gumbel_problem *target,
                                          gumbel_error *error)
{
    GUMBEL_REFUSE_IF(
        s->slots.of_row || s->live_rows, error, "draft.sampling.slots",
        "slots and live_rows must be unset here: they are set in the target's sampling");
    GUMBEL_REFUSE_IF(s->given.data || s->noise, error, "draft.sampling.given",
                     "given and noise must be NULL for a draft");
    GUMBEL_REFUSE_IF(s->token_ids, error, "draft.sampling.token_ids",
                     "must be NULL: the rule compares probabilities of the target's vocabulary");
    GUMBEL_REFUSE_IF(s->num_samples > 1, error, "draft.sampling.num_samples",
                     "is %d; it must be 1 for a draft", (int)s->num_samples);
    GUMBEL_REFUSE_IF(s->domain == target->sampling.domain || is_rule_domain(s->domain), error,
                     "draft.sampling.domain",
                     "is %u; the target or the rule uses its noise: choose another domain",
                     (unsigned)s->domain);
    GUMBEL_REFUSE_IF(is_rule_domain(target->sampling.domain), error, "sampling.domain",
                     "is %u; the rule uses its noise: choose another domain",
                     (unsigned)target->sampling.domain);
    return GUMBEL_OK;
}

gumbel_status gumbel_read_proposal(gumbel_problem *p, const gumbel_draft *draft,
                                   const gumbel_problem *target, int64_t rows, int check_values,
                                   gumbel_error *error)
{
    gumbel_sampling s = {.domain = GUMBEL_DOMAIN_DRAFT};
    const char *field = draft->head ? "draft.head" : "draft.logits";
    if (draft->sampling)
        GUMBEL_FORWARD(gumbel_read_options(&s, sizeof s, draft->sampling, "draft.sampling", error));
    GUMBEL_FORWARD(check_draft_sampling(&s, target, error));
    s.struct_size = sizeof s;
    s.slots = target->sampling.slots;
    s.position = (gumbel_row_u64){0};
    GUMBEL_FORWARD(prefix_field(
        draft->head ? gumbel_read_head(p, GUMBEL_SCREEN_LAYOUT_NONE, draft->head, NULL, error)
                    : gumbel_read_logits(p, draft->logits, NULL, error),
        error));
    GUMBEL_REFUSE_IF(p->batch != rows, error, field,
                     "the draft has %" PRId64 " rows, but the target has %" PRId64, p->batch, rows);
    GUMBEL_REFUSE_IF(p->vocab != target->vocab || p->first_token != target->first_token ||
                         p->end_token != target->end_token,
                     error, field,
                     "%" PRId64 " vocabulary rows, first_token %" PRId64 " and vocab_size %" PRId64
                     " must equal the target's %" PRId64 ", %" PRId64 " and %" PRId64,
                     p->vocab, p->first_token, p->end_token, target->vocab, target->first_token,
                     target->end_token);
    p->batch = draft->requests;
    GUMBEL_FORWARD(prefix_field(gumbel_read_sampling(p, &s, error), error));
    p->sampling.live_rows = target->sampling.live_rows;
    return check_values ? prefix_field(gumbel_check_host_sampling(p, error), error) : GUMBEL_OK;
}
