/* SPDX-License-Identifier: Apache-2.0 */
#include "rank_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { WORKSPACE = 1 << 20 };

static void open_rank(void *argument, int32_t r)
{
    rank_calls *s = argument;
    gumbel_transport transport = thread_ranks_transport(s->place, r);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = r * CALLS_VOCAB / CALLS_RANKS,
                                          .rows = CALLS_VOCAB / CALLS_RANKS,
                                          .timeout_ms = s->timeout_ms};
    s->status[r] =
        gumbel_group_open(&transport, s->device[r], &options, &s->group[r], &s->error[r]);
}

void rank_calls_draw(void *argument, int32_t r)
{
    rank_calls *s = argument;
    static const float temperatures[CALLS_BATCH] = {1, 1, 1, 1};
    static const uint64_t drawn_at[CALLS_BATCH] = {7, 8, 9, 10},
                          drawn_by[CALLS_BATCH] = {1, 2, 3, 4};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {temperatures, 0},
                                .seed = {drawn_by, 0},
                                .position = {drawn_at, 0}};
    gumbel_output output = {.struct_size = sizeof output, .tokens = s->tokens[r]};
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = {.data = s->logits + r * CALLS_VOCAB / CALLS_RANKS,
                                       .dtype = GUMBEL_FLOAT32,
                                       .rows = CALLS_BATCH,
                                       .cols = CALLS_VOCAB / CALLS_RANKS,
                                       .stride = CALLS_VOCAB},
                            .first_token = r * CALLS_VOCAB / CALLS_RANKS};
    unsigned char *workspace = s->workspaces + (size_t)r * WORKSPACE;
    if (r == CALLS_DEVIATING && s->absent)
        return;
    if (r == CALLS_DEVIATING && s->deviation)
        s->deviation->apply(&logits, &sampling, &output);
    s->error[r] = (gumbel_error){"", ""};
    s->status[r] = gumbel_group_sample_logits(s->group[r], NULL, &logits, &sampling, &output,
                                              workspace, WORKSPACE, &s->error[r]);
}

void rank_calls_open(rank_calls *s, int64_t timeout_ms)
{
    uint64_t random = 5;
    float *logits = make_zeroed(CALLS_BATCH * CALLS_VOCAB, sizeof *logits);
    for (int i = 0; i < CALLS_BATCH * CALLS_VOCAB; i++)
        logits[i] = 2 * random_normal(&random);
    *s = (rank_calls){
        .place = thread_ranks_make(CALLS_RANKS), .logits = logits, .timeout_ms = timeout_ms};
    s->workspaces = poisoned_workspace((size_t)CALLS_RANKS * WORKSPACE);
    for (int r = 0; r < CALLS_RANKS; r++)
        s->device[r] = open_device(GUMBEL_ISA_AUTO, 1, 0);
    thread_ranks_run(CALLS_RANKS, open_rank, s);
    for (int r = 0; r < CALLS_RANKS; r++)
        assert_int_equal(s->status[r], GUMBEL_OK);
}

void rank_calls_close(rank_calls *s)
{
    for (int r = 0; r < CALLS_RANKS; r++) {
        gumbel_group_close(s->group[r]);
        gumbel_close(s->device[r]);
    }
    thread_ranks_free(s->place);
    free((void *)(uintptr_t)s->logits);
    free(s->workspaces);
}

void rank_calls_assert_equal(rank_calls *s)
{
    s->deviation = NULL;
    s->absent = 0;
    thread_ranks_run(CALLS_RANKS, rank_calls_draw, s);
    for (int r = 0; r < CALLS_RANKS; r++) {
        assert_int_equal(s->status[r], GUMBEL_OK);
        assert_memory_equal(s->tokens[r], s->tokens[0], sizeof s->tokens[0]);
    }
}
