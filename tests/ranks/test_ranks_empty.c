/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank whose shard is empty accepts a mask that ends at its own last token, and draws the tokens
 * of the other ranks.
 */
#include "outcome.h"
#include "thread_ranks.h"

#include <gumbel/dist.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, EMPTY = 1, BATCH = 4, VOCAB = 640, D = 16, WORDS = VOCAB / 32 };
static const int64_t first[RANKS] = {0, 320, 320}, rows[RANKS] = {320, 0, 320};

typedef struct scene {
    thread_ranks *place;
    gumbel_device *device;
    problem *generated;
    int32_t mask[BATCH][WORDS];
    int fused;
    outcome *drawn[RANKS];
    gumbel_status sized[RANKS], status[RANKS];
    gumbel_error error[RANKS];
} scene;

static gumbel_logits logits_of(const scene *s, int64_t token, int64_t count)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of((const float *)s->generated->weight + token,
                                               GUMBEL_FLOAT32, BATCH, count, VOCAB),
                           .first_token = token};
}

/* Draws on rank r, from a head or from logits, with a mask that ends at the rank's last token. */
static void draw_rank(void *argument, int32_t r)
{
    scene *s = argument;
    const int64_t words = (first[r] + rows[r] + 31) / 32;
    int32_t *own = make_zeroed((size_t)(BATCH * words), sizeof *own);
    for (int b = 0; b < BATCH; b++)
        memcpy(own + b * words, s->mask[b], (size_t)words * sizeof *own);
    const gumbel_transforms masked = {.struct_size = sizeof masked, .mask = {own, words}};
    gumbel_sampling how = s->generated->sampling;
    gumbel_head head = s->generated->head;
    gumbel_logits logits = logits_of(s, first[r], rows[r]);
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(s->place, r);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = first[r],
                                          .rows = rows[r],
                                          .timeout_ms = 20000};
    size_t bytes = 0;
    how.transforms = &masked;
    if (s->fused)
        head = problem_shard(&s->generated->head, first[r], rows[r]);
    if (gumbel_group_open(&transport, s->device, &options, &group, NULL) != GUMBEL_OK)
        die("rank %d: no group", (int)r);
    s->sized[r] =
        gumbel_group_workspace_size(group, s->fused ? &head : NULL, s->fused ? NULL : &logits, &how,
                                    &s->drawn[r]->output, &bytes, &s->error[r]);
    void *workspace = aligned_alloc(64, bytes / 64 * 64 + 64);
    outcome_poison(s->drawn[r]);
    s->status[r] =
        s->fused ? gumbel_group_sample(group, NULL, &head, &how, &s->drawn[r]->output, workspace,
                                       bytes, &s->error[r])
                 : gumbel_group_sample_logits(group, NULL, &logits, &how, &s->drawn[r]->output,
                                              workspace, bytes, &s->error[r]);
    free(workspace);
    free(own);
    gumbel_group_close(group);
}

static void check_empty_shard(int fused)
{
    /* The weights are used as a head [VOCAB, D], or as logits [BATCH, VOCAB]. */
    const problem_plan plan = {.batch = BATCH,
                               .vocab = fused ? VOCAB : BATCH,
                               .hidden_size = fused ? D : VOCAB,
                               .weight_dtype = GUMBEL_FLOAT32,
                               .spread = fused ? 3 : 60,
                               .seed = 3};
    scene s = {.place = thread_ranks_make(RANKS),
               .device = open_device(GUMBEL_ISA_AUTO, 1, 0),
               .generated = problem_make(&plan),
               .fused = fused};
    uint64_t random = 9;
    for (int i = 0; i < BATCH * WORDS; i++)
        s.mask[i / WORDS][i % WORDS] = (int32_t)random_bits(&random);
    outcome *whole = outcome_make(BATCH, 1);
    const gumbel_transforms masked = {.struct_size = sizeof masked, .mask = {s.mask[0], 0}};
    gumbel_sampling how = s.generated->sampling;
    how.transforms = &masked;
    const gumbel_logits logits = logits_of(&s, 0, VOCAB);
    assert_int_equal(fused ? draw(s.device, &s.generated->head, &how, whole)
                           : draw_logits(s.device, &logits, &how, whole),
                     GUMBEL_OK);
    for (int r = 0; r < RANKS; r++)
        s.drawn[r] = outcome_make(BATCH, 1);
    thread_ranks_run(RANKS, draw_rank, &s);
    for (int r = 0; r < RANKS; r++) {
        if (s.sized[r] != GUMBEL_OK || s.status[r] != GUMBEL_OK)
            fail_msg("rank %d: %s: %s", r, s.error[r].field, s.error[r].message);
        assert_true(outcome_same(whole, 0, s.drawn[r], OUTCOME_ALL, "a rank"));
        outcome_free(s.drawn[r]);
    }
    outcome_free(whole);
    problem_free(s.generated);
    thread_ranks_free(s.place);
    gumbel_close(s.device);
}

static void empty_shard_with_a_short_mask(void **state)
{
    (void)state;
    check_empty_shard(0);
    check_empty_shard(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(empty_shard_with_a_short_mask)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
