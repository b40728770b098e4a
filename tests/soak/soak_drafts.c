/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts of a soak call (soak_call.h). A row's draw depends on the row, its request and its depth,
 * and on drafted tokens only if penalties count them. The drafts that will be accepted are
 * therefore known once all rows have been drawn.
 */
#include "soak_call.h"

#include <stdlib.h>
#include <string.h>

int64_t soak_drafts_requests(const soak_plan *plan)
{
    return plan->nodes ? plan->req.batch / plan->nodes : 0;
}

static gumbel_verified verified_at(const soak_call *call, int slot, const gumbel_output *rows)
{
    void *places[SOAK_PLACES - SOAK_OF_ROWS];
    for (int i = SOAK_OF_ROWS; i < SOAK_PLACES; i++)
        places[i - SOAK_OF_ROWS] = soak_place_of(call, slot, i);
    gumbel_verified v = {.struct_size = sizeof v,
                         .tokens = places[0],
                         .emitted = places[1],
                         .accepted = places[2],
                         .path = places[3],
                         .last_row = places[4],
                         .finished = places[5],
                         .status = places[6],
                         .logprobs = places[7],
                         .scores = places[8],
                         .rows = rows};
    if (call->plan.advances)
        v.position = (uint64_t *)call->on_gpu->req.sampling.position.data;
    return v;
}

size_t soak_drafts_workspace(const soak_call *call, const gumbel_output *rows)
{
    const request *r = &call->on_gpu->req;
    const gumbel_verified verified = verified_at(call, 0, rows);
    const gumbel_draft draft = {.struct_size = sizeof draft,
                                .requests = soak_drafts_requests(&call->plan),
                                .max_nodes = call->plan.nodes,
                                .tokens = rows->tokens};
    int fused = r->plan.hidden_size > 0;
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    if (gumbel_verify_workspace_size(gpu, fused ? &r->head : NULL, fused ? NULL : &r->logits,
                                     &r->sampling, &draft, &verified, &bytes, &error) != GUMBEL_OK)
        die("%s: %s: %s", call->text, error.field, error.message);
    return bytes;
}

void soak_drafts_queue(const soak_call *call, int slot, const gumbel_output *rows, CUstream stream)
{
    const request *r = &call->on_gpu->req;
    const gumbel_verified verified = verified_at(call, slot, rows);
    gumbel_error error = {"", ""};
    gumbel_status status =
        r->plan.hidden_size > 0
            ? gumbel_verify(gpu, stream, &r->head, &r->sampling, &call->draft, &verified,
                            call->workspace, call->workspace_bytes, &error)
            : gumbel_verify_logits(gpu, stream, &r->logits, &r->sampling, &call->draft, &verified,
                                   call->workspace, call->workspace_bytes, &error);
    if (status != GUMBEL_OK ||
        (call->plan.counts && gumbel_history_update(gpu, stream, &r->history, call->draft.requests,
                                                    NULL, verified.tokens, call->draft.max_nodes,
                                                    verified.emitted, &error) != GUMBEL_OK))
        die("%s: %s: %s", call->text, error.field, error.message);
}

/* Returns the tokens that rows draw without drafts, [n], on the heap. */
static int32_t *draw_rows(const soak_call *call, const gumbel_output *out)
{
    size_t rows = (size_t)call->plan.req.batch;
    int32_t *drawn = make_zeroed(rows, sizeof *drawn);
    soak_call still = *call;
    still.plan.advances = still.plan.counts = 0;
    soak_drafts_queue(&still, 0, out, NULL);
    GPU(cuCtxSynchronize);
    gpu_fetch(drawn, out->tokens, rows * sizeof *drawn);
    return drawn;
}

void soak_drafts_make(soak_call *call, const gumbel_output *out, uint64_t *random)
{
    const int nodes = call->plan.nodes;
    const int64_t requests = soak_drafts_requests(&call->plan), rows = requests * nodes;
    const size_t bytes = (size_t)call->plan.req.batch * sizeof(int32_t);
    int32_t *tokens = make_zeroed(bytes, 1), *parents = make_zeroed(bytes, 1);
    for (int64_t b = 0; b < rows; b++) {
        const int j = (int)(b % nodes);
        parents[b] = j == 0 ? 0 : call->plan.trees ? (int)random_below(random, (uint32_t)j) : j - 1;
        tokens[b] = -1;
    }
    call->draft = (gumbel_draft){.struct_size = sizeof call->draft,
                                 .requests = requests,
                                 .max_nodes = nodes,
                                 .tokens = gpu_copy(tokens, bytes),
                                 .parents = call->plan.trees ? gpu_copy(parents, bytes) : NULL};
    int32_t *drawn = draw_rows(call, out);
    for (int64_t b = 0; b < rows; b++) {
        const int64_t root = b / nodes * nodes;
        tokens[b] = random_below(random, 5) ? drawn[root + parents[b]] : (int32_t)(b * 37);
    }
    gpu_put((void *)(uintptr_t)call->draft.tokens, tokens, bytes);
    free(drawn);
    free(tokens);
    free(parents);
}

void soak_drafts_free(soak_call *call)
{
    gpu_free((void *)(uintptr_t)call->draft.tokens);
    gpu_free((void *)(uintptr_t)call->draft.parents);
}
