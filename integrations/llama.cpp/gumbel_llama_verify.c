/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification of the drafts in a decoded batch.
 */
#include "gumbel_llama_state.h"

#include <gumbel/drafts.h>

#include <stdlib.h>
#include <string.h>

static gumbel_status return_error(gumbel_status status, gumbel_error *error, const char *field,
                                  const char *message)
{
    gumbel_llama_set_error(error, field, message);
    return status;
}

/* Check the arguments. A mask, a full window of penalties, the list of DRY, mirostat's mu and
 * the target of adaptive_p would change with each accepted draft, which one call of the library
 * cannot express. */
static gumbel_status check_draft(const struct gumbel_llama_state *state,
                                 const struct gumbel_llama_draft *draft, gumbel_error *error)
{
    const int64_t window = state->penalised.window;

    if (draft->count < 0 || draft->count >= GUMBEL_NODES_MAX || (draft->count && !draft->tokens))
        return return_error(GUMBEL_ERROR_ARGUMENT, error, "draft.count",
                            "is not in [0, 1023], or tokens is NULL");
    if (draft->first < 0)
        return return_error(GUMBEL_ERROR_ARGUMENT, error, "draft.first", "is negative");
    if (draft->head && draft->head->weight.cols < 1)
        return return_error(GUMBEL_ERROR_ARGUMENT, error, "draft.head",
                            "has a weight without columns");
    if (state->report.position < 0)
        return return_error(GUMBEL_ERROR_ARGUMENT, error, "position",
                            "no token has been accepted yet");
    if (draft->count > 0 && state->params.mask)
        return return_error(GUMBEL_ERROR_UNSUPPORTED, error, "mask",
                            "is not supported with drafts");
    if (state->params.mirostat)
        return return_error(GUMBEL_ERROR_UNSUPPORTED, error, "mirostat",
                            "is not supported with drafts");
    if (gumbel_llama_is_adaptive(&state->params))
        return return_error(GUMBEL_ERROR_UNSUPPORTED, error, "adaptive_target",
                            "is not supported with drafts");
    if (draft->count > 0 && state->dry)
        return return_error(GUMBEL_ERROR_UNSUPPORTED, error, "dry_multiplier",
                            "is not supported with drafts");
    if (window > 0 && state->penalised.count + (uint64_t)draft->count > (uint64_t)window)
        return return_error(GUMBEL_ERROR_UNSUPPORTED, error, "penalty_last_n",
                            "the window would move within the draft");
    return GUMBEL_OK;
}

static const float *get_row(struct llama_context *context, const gumbel_head *head, int32_t i)
{
    return head ? llama_get_embeddings_ith(context, i) : llama_get_logits_ith(context, i);
}

/* Rows first .. first + count - 1 of the context's outputs, `cols` wide: in place if they are
 * contiguous, else in *copy, which the caller frees. NULL with an error. */
static const float *gather_rows(struct llama_context *context, const gumbel_head *head,
                                int32_t first, int32_t count, int64_t cols, float **copy,
                                gumbel_error *error)
{
    const float *start = get_row(context, head, first);
    bool together = true;

    *copy = NULL;
    for (int32_t j = 0; j < count; j++) {
        const float *row = get_row(context, head, first + j);
        if (!row) {
            return_error(GUMBEL_ERROR_ARGUMENT, error, "draft.first",
                         "a row of the draft has no logits, or with a head no embeddings");
            return NULL;
        }
        together = together && row == start + j * cols;
    }
    if (together)
        return start;
    *copy = malloc((size_t)count * (size_t)cols * sizeof **copy);
    if (!*copy) {
        return_error(GUMBEL_ERROR_MEMORY, error, "draft.count", "out of memory for its rows");
        return NULL;
    }
    for (int32_t j = 0; j < count; j++)
        memcpy(*copy + j * cols, get_row(context, head, first + j), (size_t)cols * sizeof **copy);
    return *copy;
}

/* Call the library with a workspace. */
static gumbel_status call_verify(struct gumbel_llama_state *state, const gumbel_head *head,
                                 const gumbel_logits *logits, const gumbel_draft *draft,
                                 const gumbel_verified *verified, gumbel_error *error)
{
    struct gumbel_llama_request r;
    size_t bytes = 0;

    gumbel_status status =
        gumbel_llama_fill_request(state, state->device, draft->max_nodes == 1, &r, error);
    if (status == GUMBEL_OK)
        status = gumbel_verify_workspace_size(state->device, head, logits, &r.sampling, draft,
                                              verified, &bytes, error);
    if (status != GUMBEL_OK)
        return status;
    if (!gumbel_llama_reserve_workspace(state, bytes))
        return return_error(GUMBEL_ERROR_MEMORY, error, "draft.count", "out of memory for it");
    return head ? gumbel_verify(state->device, NULL, head, &r.sampling, draft, verified,
                                state->workspace, bytes, error)
                : gumbel_verify_logits(state->device, NULL, logits, &r.sampling, draft, verified,
                                       state->workspace, bytes, error);
}

gumbel_status gumbel_llama_verify(struct llama_sampler *sampler, struct llama_context *context,
                                  const struct gumbel_llama_draft *draft, llama_token *tokens,
                                  int32_t *emitted, gumbel_error *error)
{
    struct gumbel_llama_state *state = gumbel_llama_find_state(sampler);
    if (!state)
        return return_error(GUMBEL_ERROR_ARGUMENT, error, "sampler",
                            "is not one of gumbel_llama_init()");
    gumbel_status status = check_draft(state, draft, error);
    if (status != GUMBEL_OK)
        return status;

    const int32_t n = draft->count + 1;
    const int64_t cols = draft->head ? draft->head->weight.cols : state->n_vocab;
    float *copy;
    const float *rows = gather_rows(context, draft->head, draft->first, n, cols, &copy, error);
    if (!rows)
        return GUMBEL_ERROR_ARGUMENT;
    int32_t nodes[GUMBEL_NODES_MAX] = {-1}, row = GUMBEL_ROW_OK;
    if (draft->count > 0)
        memcpy(nodes + 1, draft->tokens, (size_t)draft->count * sizeof *nodes);
    gumbel_head head = draft->head ? *draft->head : (gumbel_head){0};
    head.hidden = (gumbel_tensor){.data = rows, .dtype = GUMBEL_FLOAT32, .rows = n, .cols = cols};
    const gumbel_logits logits = gumbel_llama_logits(state, rows, n);
    const gumbel_draft drafted = {
        .struct_size = sizeof drafted, .requests = 1, .max_nodes = n, .tokens = nodes};
    const gumbel_verified verified = {
        .struct_size = sizeof verified, .tokens = tokens, .emitted = emitted, .status = &row};
    status = call_verify(state, draft->head ? &head : NULL, draft->head ? NULL : &logits, &drafted,
                         &verified, error);
    free(copy);
    if (status != GUMBEL_OK)
        return status;
    state->report.rows += *emitted;
    for (int32_t j = 0; j < *emitted; j++)
        llama_sampler_accept(sampler, tokens[j]);
    if (row != GUMBEL_ROW_OK) {
        state->report.failed++;
        gumbel_llama_fail(state, "logits", gumbel_row_status_string(row));
    }
    return GUMBEL_OK;
}
