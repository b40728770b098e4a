/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks verify drafts: the text equals the one that a single device decodes step by step.
 */
#include "draft_cycles.h"
#include "shards.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct shared_cycle {
    thread_ranks *place;
    gumbel_device **devices;
    const cycle *req;
    const int32_t *progress;
    shard_split split;
    int odd; /* the rank that passes a different draft; -1: none */
    _Atomic int wrong;
    int32_t emitted[64]; /* the result of rank 0 */
} shared_cycle;

static gumbel_status verify_shard(gumbel_group *group, const shared_cycle *c, int32_t rank,
                                  const gumbel_draft *draft, verified_arrays *into,
                                  gumbel_error *error)
{
    const cycle *req = c->req;
    int fused = req->of->plan.hidden_size > 0;
    const request whole = {.plan = {.first_token = 0}, .head = req->head, .logits = req->logits};
    gumbel_head head = {0};
    gumbel_logits logits = {0};
    gumbel_sampling sampling = req->sampling;
    gumbel_transforms transforms = req->transforms;
    size_t bytes = 0;
    if (sampling.transforms) {
        transforms.mask.stride = texts_words(req->of); /* a row is the whole's */
        sampling.transforms = &transforms;
    }
    if (fused)
        head = shards_head(&whole, &c->split, rank);
    else
        logits = shards_logits(&whole, &c->split, rank);
    gumbel_status status =
        gumbel_group_verify_workspace_size(group, fused ? &head : NULL, fused ? NULL : &logits,
                                           &sampling, draft, &into->to, &bytes, error);
    void *workspace = poisoned_workspace(status == GUMBEL_OK ? bytes : 64);
    status = fused ? gumbel_group_verify(group, NULL, &head, &sampling, draft, &into->to, workspace,
                                         bytes, error)
                   : gumbel_group_verify_logits(group, NULL, &logits, &sampling, draft, &into->to,
                                                workspace, bytes, error);
    free(workspace);
    return status;
}

static void run_rank(void *argument, int32_t rank)
{
    shared_cycle *c = argument;
    int32_t requests = c->req->of->plan.requests;
    gumbel_error error = {"", ""};
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = c->split.first[rank],
                                          .rows = c->split.rows[rank]};
    gumbel_draft draft = c->req->draft;
    int32_t *tokens = make_zeroed((size_t)c->req->rows, sizeof *tokens);
    memcpy(tokens, draft.tokens, (size_t)c->req->rows * sizeof *tokens);
    if (rank == c->odd) {
        tokens[0] ^= 1;
        draft.tokens = tokens;
    }
    verified_arrays *found = verified_make(requests, c->req->max_nodes, requests + 3);
    if (gumbel_group_open(&transport, c->devices[rank], &options, &group, &error) != GUMBEL_OK)
        c->wrong = 1;
    gumbel_status status =
        c->wrong ? GUMBEL_OK : verify_shard(group, c, rank, &draft, found, &error);
    if (c->odd >= 0)
        c->wrong |= status != GUMBEL_ERROR_GROUP || strcmp(error.field, "draft") != 0;
    else
        c->wrong |= status != GUMBEL_OK || !cycle_agrees(c->req, c->progress, found, 0);
    if (c->wrong)
        printf("rank %d: %s: %s\n", (int)rank, error.field, error.message);
    if (rank == 0 && c->odd < 0)
        memcpy(c->emitted, found->emitted, (size_t)requests * sizeof *found->emitted);
    free(tokens);
    verified_free(found);
    gumbel_group_close(group);
}

static void verified_texts_match_one_device(void **state)
{
    gumbel_device *devices[4];
    int64_t emitted = 0, cycles = 0;
    (void)state;
    for (int i = 0; i < 4; i++)
        devices[i] = open_device(GUMBEL_ISA_AUTO, 1, 0);
    for (int index = 0; index < (TEST_SANITIZED ? 6 : 24); index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, devices[0]);
        int32_t progress[64] = {0};
        uint64_t random = (uint64_t)index;
        for (int turn = 0; turn < 6; turn++) {
            int32_t ranks = 1 + (int32_t)random_below(&random, 4);
            cycle *req = cycle_make(of, progress, &random);
            shared_cycle call = {.place = thread_ranks_make(ranks),
                                 .devices = devices,
                                 .req = req,
                                 .progress = progress,
                                 .split = split_vocabulary(0, plan.vocab, ranks, 0, &random),
                                 .odd = -1};
            thread_ranks_run(ranks, run_rank, &call);
            if (call.wrong)
                fail_msg("plan %d, cycle %d, %d ranks", index, turn, (int)ranks);
            call.odd = ranks - 1;
            if (ranks > 1 && req->rows > 0)
                thread_ranks_run(ranks, run_rank, &call);
            if (call.wrong)
                fail_msg("plan %d, cycle %d: a different draft is not an error", index, turn);
            for (int32_t r = 0; r < plan.requests; r++) {
                emitted += call.emitted[r];
                cycles += call.emitted[r] > 0;
                progress[r] += call.emitted[r];
                progress[r] = progress[r] + 10 > plan.length ? 0 : progress[r];
            }
            thread_ranks_free(call.place);
            cycle_free(req);
        }
        texts_free(of);
    }
    assert_true(emitted > cycles * 3 / 2); /* some drafts are accepted */
    for (int i = 0; i < 4; i++)
        gumbel_close(devices[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(verified_texts_match_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
