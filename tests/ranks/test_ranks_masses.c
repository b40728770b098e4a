/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks sum the masses of their shards only if an output requires them. Tokens and scores have the
 * same bits with and without masses.
 */
#include "core/backend.h"
#include "shards.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, VOCAB = 1024, BATCH = 3, SAMPLES = 2, DRAWS = BATCH * SAMPLES };
enum { PLAIN, SCORED, LOGPROBS, LSE, WAYS };

/* A CPU device that counts partial draws, and partial draws with masses. */
typedef struct counted_device {
    gumbel_device base; /* first */
    gumbel_backend table;
    gumbel_device *cpu;
    int parts, with_mass;
} counted_device;

typedef struct shared_draws {
    thread_ranks *place;
    gumbel_device *cpu[RANKS];
    const float *logits; /* [BATCH, VOCAB] */
    int parts[RANKS][WAYS], with_mass[RANKS][WAYS];
    int32_t tokens[RANKS][WAYS][DRAWS];
    float scores[RANKS][DRAWS], logprobs[RANKS][DRAWS], lse[RANKS][BATCH];
} shared_draws;

static gumbel_status plan_call(const gumbel_device *device, const gumbel_problem *p,
                               uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    gumbel_device *cpu = ((const counted_device *)device)->cpu;
    return cpu->backend->plan(cpu, p, purpose, plan, error);
}

static gumbel_status count_partial(gumbel_device *device, const gumbel_problem *p,
                                   const gumbel_plan *plan, gumbel_summary *summaries,
                                   void *workspace, gumbel_error *error)
{
    counted_device *counted = (counted_device *)device;
    counted->parts++;
    counted->with_mass += p->with_mass != 0;
    return counted->cpu->backend->draw_partial(counted->cpu, p, plan, summaries, workspace, error);
}

static void draw_part(shared_draws *c, int32_t r, gumbel_group *group, int way)
{
    static const float temperature = 0.9f;
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {&temperature, GUMBEL_SAME},
                                      .num_samples = SAMPLES};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = {.data = c->logits + r * VOCAB / RANKS,
                                             .dtype = GUMBEL_FLOAT32,
                                             .rows = BATCH,
                                             .cols = VOCAB / RANKS,
                                             .stride = VOCAB},
                                  .first_token = r * VOCAB / RANKS};
    const gumbel_output output = {.struct_size = sizeof output,
                                  .tokens = c->tokens[r][way],
                                  .scores = way == SCORED ? c->scores[r] : NULL,
                                  .logprobs = way == LOGPROBS ? c->logprobs[r] : NULL,
                                  .lse = way == LSE ? c->lse[r] : NULL};
    enum { WORKSPACE = 1 << 20 };
    void *workspace = poisoned_workspace(WORKSPACE);
    gumbel_error error = {"", ""};
    if (gumbel_group_sample_logits(group, NULL, &logits, &sampling, &output, workspace, WORKSPACE,
                                   &error) != GUMBEL_OK)
        die("%s", error.message);
    free(workspace);
}

static void run_rank(void *argument, int32_t r)
{
    shared_draws *c = argument;
    counted_device counted = {.cpu = c->cpu[r]};
    counted.table = (gumbel_backend){.supports = counted.cpu->backend->supports,
                                     .host_memory = 1,
                                     .plan = plan_call,
                                     .draw_partial = count_partial};
    counted.base.backend = &counted.table;
    gumbel_group *group = NULL;
    gumbel_error error = {"", ""};
    gumbel_transport transport = thread_ranks_transport(c->place, r);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = r * VOCAB / RANKS,
                                          .rows = VOCAB / RANKS,
                                          .timeout_ms = 20000};
    if (gumbel_group_open(&transport, &counted.base, &options, &group, &error) != GUMBEL_OK)
        die("%s", error.message);
    for (int way = 0; way < WAYS; way++) {
        counted.parts = counted.with_mass = 0;
        draw_part(c, r, group, way);
        c->parts[r][way] = counted.parts;
        c->with_mass[r][way] = counted.with_mass;
    }
    gumbel_group_close(group);
}

/* Draws from the whole on one device. */
static void draw_whole(const shared_draws *c, gumbel_output output)
{
    static const float temperature = 0.9f;
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {&temperature, GUMBEL_SAME},
                                      .num_samples = SAMPLES};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = {.data = c->logits,
                                             .dtype = GUMBEL_FLOAT32,
                                             .rows = BATCH,
                                             .cols = VOCAB,
                                             .stride = VOCAB}};
    enum { WORKSPACE = 1 << 20 };
    void *workspace = poisoned_workspace(WORKSPACE);
    assert_int_equal(gumbel_sample_logits(c->cpu[0], NULL, &logits, &sampling, &output, workspace,
                                          WORKSPACE, NULL),
                     GUMBEL_OK);
    free(workspace);
}

static void masses_are_summed_only_if_requested(void **state)
{
    int32_t tokens[DRAWS];
    float scores[DRAWS], logprobs[DRAWS], lse[BATCH];
    uint64_t random = 11;
    float *logits = make_zeroed(BATCH * VOCAB, sizeof *logits);
    shared_draws c = {.place = thread_ranks_make(RANKS), .logits = logits};
    (void)state;
    for (int i = 0; i < BATCH * VOCAB; i++)
        logits[i] = 2 * random_normal(&random);
    for (int r = 0; r < RANKS; r++)
        c.cpu[r] = open_device(GUMBEL_ISA_AUTO, 1, 0);
    draw_whole(&c, (gumbel_output){.struct_size = sizeof(gumbel_output),
                                   .tokens = tokens,
                                   .scores = scores,
                                   .logprobs = logprobs,
                                   .lse = lse});
    thread_ranks_run(RANKS, run_rank, &c);
    for (int r = 0; r < RANKS; r++) {
        for (int way = 0; way < WAYS; way++) {
            int req = way == LOGPROBS || way == LSE;
            assert_true(c.parts[r][way] > 0);
            assert_int_equal(c.with_mass[r][way], req ? c.parts[r][way] : 0);
            assert_memory_equal(c.tokens[r][way], tokens, sizeof tokens);
        }
        assert_memory_equal(c.scores[r], scores, sizeof scores);
        assert_memory_equal(c.logprobs[r], logprobs, sizeof logprobs);
        assert_memory_equal(c.lse[r], lse, sizeof lse);
        gumbel_close(c.cpu[r]);
    }
    thread_ranks_free(c.place);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(masses_are_summed_only_if_requested)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
