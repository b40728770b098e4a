/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that pass different or invalid parameters: every rank returns an error that names the
 * field, and the group remains usable.
 */
#include "rank_calls.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const float warm[CALLS_BATCH] = {1, 1, 2, 1};
static const uint64_t places[CALLS_BATCH] = {7, 8, 9, 11};
static const uint64_t seeds[CALLS_BATCH] = {1, 2, 3, 5};
static const int32_t given[CALLS_BATCH] = {1, 2, 3, 4};
static const float cold = -1;
static gumbel_truncation other_truncation = {.struct_size = sizeof other_truncation,
                                             .ties = GUMBEL_TIES_EXACT};
static int32_t top_ids[CALLS_RANKS][CALLS_BATCH * 2];
static float floats[CALLS_RANKS][CALLS_BATCH];

static void change_temperature(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->temperature = (gumbel_row_f32){warm, 0};
}

static void change_seed(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->seed = (gumbel_row_u64){seeds, 0};
}

static void change_position(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->position = (gumbel_row_u64){places, 0};
}

static void change_first_sample(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const uint32_t counters[CALLS_BATCH] = {0, 0, 3, 0};
    (void)l, (void)o;
    s->first_sample = (gumbel_row_u32){counters, 0};
}

static void change_num_samples(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->num_samples = 2;
}

static void change_domain(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->domain = GUMBEL_DOMAIN_DRAFT;
}

static void drop_row(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->logits.rows--;
}

static void drop_all_rows(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->logits.rows = 0;
}

static void change_soft_cap(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->soft_cap = 30;
}

static void change_vocab_size(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->vocab_size = CALLS_VOCAB - 1;
}

static void add_truncation(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const int32_t k = 5;
    (void)l, (void)o;
    other_truncation.top_k = (gumbel_row_i32){&k, GUMBEL_SAME};
    s->truncation = &other_truncation;
}

static void add_given_tokens(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->given = (gumbel_row_i32){given, 0};
}

static void add_top_ids(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->num_top = 2;
    o->top_ids = top_ids[CALLS_DEVIATING];
}

/* Without these outputs the other ranks sum no masses. */
static void add_logprobs(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->logprobs = floats[CALLS_DEVIATING];
}

static void add_lse(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->lse = floats[CALLS_DEVIATING];
}

static void add_raw_kept_logprobs(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static int32_t kept[CALLS_BATCH];
    (void)l, (void)s;
    o->kept = kept;
    o->kept_capacity = 1;
    o->kept_ids = top_ids[CALLS_DEVIATING];
    o->kept_logprobs = floats[CALLS_DEVIATING];
    o->logprobs_of = GUMBEL_RAW;
}

static void add_raw_entropy(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->entropy = floats[CALLS_DEVIATING];
    o->logprobs_of = GUMBEL_RAW;
}

static void set_negative_temperature(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->temperature = (gumbel_row_f32){&cold, GUMBEL_SAME};
}

static void add_token_ids(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const int32_t ids[1];
    (void)l, (void)o;
    s->token_ids = ids;
}

static void shift_first_token(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->first_token++;
}

static void drop_tokens(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->tokens = NULL;
}

static const rank_fault faults[] = {
    {"sampling.temperature", change_temperature},
    {"sampling.seed", change_seed},
    {"sampling.position", change_position},
    {"sampling.first_sample", change_first_sample},
    {"sampling.num_samples", change_num_samples},
    {"sampling.domain", change_domain},
    {"batch", drop_row},
    {"batch", drop_all_rows},
    {"head", change_soft_cap},
    {"vocab_size", change_vocab_size},
    {"sampling.truncation", add_truncation},
    {"sampling.given", add_given_tokens},
    {"output", add_top_ids},
    {"output", add_logprobs},
    {"output", add_lse},
    {"output", add_raw_kept_logprobs},
    {"output", add_raw_entropy},
    {"sampling.temperature[0]", set_negative_temperature},
    {"sampling.token_ids", add_token_ids},
    {"logits.first_token", shift_first_token},
    {"output.tokens", drop_tokens},
};
enum { FAULTS = sizeof faults / sizeof *faults };

/* Every rank's error names the field, and the next call succeeds. */
static void different_parameters_are_named_on_all_ranks(void **state)
{
    rank_calls s;
    int32_t expected[CALLS_BATCH];
    (void)state;
    rank_calls_open(&s, 20000);
    rank_calls_assert_equal(&s);
    memcpy(expected, s.tokens[0], sizeof expected);
    for (int i = 0; i < FAULTS; i++) {
        s.deviation = &faults[i];
        thread_ranks_run(CALLS_RANKS, rank_calls_draw, &s);
        for (int r = 0; r < CALLS_RANKS; r++) {
            if (strcmp(s.error[r].field, faults[i].field) != 0)
                fail_msg("fault %d, rank %d: %s: %s, not %s", i, r, s.error[r].field,
                         s.error[r].message, faults[i].field);
            assert_int_not_equal(s.status[r], GUMBEL_OK);
            assert_true(r == CALLS_DEVIATING || s.status[r] == GUMBEL_ERROR_GROUP);
        }
        rank_calls_assert_equal(&s);
        assert_memory_equal(s.tokens[0], expected, sizeof expected);
    }
    rank_calls_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_parameters_are_named_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
