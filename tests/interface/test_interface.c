/* SPDX-License-Identifier: Apache-2.0
 *
 * The rest of the public interface: struct sizes, trivial problems, errors of noise and
 * gumbel_finish(), strings and versions.
 */
#include "fixtures.h"
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A struct of a newer caller, with a field that this library does not know. */
typedef struct newer_sampling {
    gumbel_sampling known;
    uint64_t unknown;
} newer_sampling;

/* Fields that an older caller's shorter struct lacks have their defaults. A newer caller's longer
 * struct is accepted if its unknown bytes are zero. */
static void older_and_newer_struct_sizes(void **state)
{
    problem_plan plan = {.batch = 2, .vocab = 50, .hidden_size = 5, .seed = 1};
    problem *generated = problem_make(&plan);
    gumbel_sampling short_one = generated->sampling;
    short_one.struct_size = offsetof(gumbel_sampling, seed);
    gumbel_sampling defaults = {.struct_size = sizeof defaults,
                                .temperature = {generated->temperature, 0}};
    outcome *a = outcome_make(2, 1), *b = outcome_make(2, 1);
    assert_int_equal(draw(*state, &generated->head, &short_one, a), GUMBEL_OK);
    assert_int_equal(draw(*state, &generated->head, &defaults, b), GUMBEL_OK);
    assert_true(outcome_same(a, 0, b, OUTCOME_ALL, "a shorter sampling"));

    newer_sampling newer = {generated->sampling, 0};
    newer.known.struct_size = sizeof newer;
    assert_int_equal(draw(*state, &generated->head, &generated->sampling, a), GUMBEL_OK);
    assert_int_equal(draw(*state, &generated->head, &newer.known, b), GUMBEL_OK);
    assert_true(outcome_same(a, 0, b, OUTCOME_ALL, "a longer sampling"));
    newer.unknown = 1;
    outcome_poison(b);
    print_message("expected error:  ");
    assert_int_equal(draw(*state, &generated->head, &newer.known, b), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(b->error.field, "sampling");
    assert_true(outcome_untouched(b));

    /* Output fields beyond the end of a shorter struct are not written. */
    gumbel_summary summary;
    gumbel_summary_clear(&summary, 1);
    gumbel_output output = b->output;
    output.struct_size = offsetof(gumbel_output, lse);
    assert_int_equal(gumbel_finish(NULL, NULL, &summary, 1, 1, 1, &output, NULL), GUMBEL_OK);
    assert_int_equal(b->tokens[0], -1);
    assert_true(isnan(b->scores[0]));
    assert_int_equal(b->status[0], (int32_t)0xA7A7A7A7);
    outcome_free(a);
    outcome_free(b);
    problem_free(generated);
}

static void empty_batch_succeeds(void **state)
{
    problem_plan plan = {.batch = 0, .vocab = 10, .hidden_size = 3};
    problem *generated = problem_make(&plan);
    outcome *untouched = outcome_make(3, 1);
    generated->head.hidden.data = NULL;
    assert_int_equal(draw(*state, &generated->head, NULL, untouched), GUMBEL_OK);
    gumbel_output nothing = {.struct_size = sizeof nothing};
    assert_int_equal(gumbel_sample(*state, NULL, &generated->head, NULL, &nothing, NULL, 0, NULL),
                     GUMBEL_OK);
    assert_int_equal(gumbel_partial(*state, NULL, &generated->head, NULL, NULL, NULL, 0, NULL),
                     GUMBEL_OK);
    assert_int_equal(gumbel_finish(NULL, NULL, NULL, 1, 0, 1, &nothing, NULL), GUMBEL_OK);
    assert_int_equal(gumbel_noise(0, 0, 0, 0, 0, 0, NULL, NULL), GUMBEL_OK);
    assert_int_equal(gumbel_merge(NULL, NULL, NULL, NULL, 0, NULL), GUMBEL_OK);
    gumbel_summary_clear(NULL, 0);
    assert_true(outcome_untouched(untouched));
    outcome_free(untouched);
    problem_free(generated);
}

/* V = 1, D = 1: the only token has log-probability 0 and log-normaliser z. */
static void single_token_vocabulary(void **state)
{
    float h = 3, w = -0.5f;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = tensor_of(&h, GUMBEL_FLOAT32, 1, 1, 0),
                        .weight = tensor_of(&w, GUMBEL_FLOAT32, 1, 1, 0),
                        .first_token = 12345};
    outcome *drawn = outcome_make(1, 1);
    float g;
    assert_int_equal(draw(*state, &head, NULL, drawn), GUMBEL_OK);
    assert_int_equal(gumbel_noise(0, 0, 0, 0, 12345, 1, &g, NULL), GUMBEL_OK);
    assert_int_equal(drawn->tokens[0], 12345);
    assert_true(drawn->lse[0] == -1.5f && drawn->logprobs[0] == 0);
    assert_true(drawn->scores[0] == -1.5f + g);
    outcome_free(drawn);
}

static void noise_errors_name_the_field(void **state)
{
    (void)state;
    float out[4] = {7, 7, 7, 7};
    gumbel_error error;
    struct {
        const char *field;
        uint32_t domain;
        int64_t first, count;
        float *out;
    } bad[] = {
        {"domain", 0x80000000u, 0, 4, out},
        {"first_token", 0, -1, 4, out},
        {"first_token", 0, 0, -1, out},
        {"first_token", 0, (INT64_C(1) << 31) - 3, 4, out},
        {"first_token", 0, INT64_MAX, INT64_MAX, out},
        {"out", 0, 0, 4, NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            gumbel_noise(1, 2, 3, bad[i].domain, bad[i].first, bad[i].count, bad[i].out, &error),
            GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, bad[i].field);
    }
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == 7);
}

static void finish_errors_name_the_field(void **state)
{
    (void)state;
    gumbel_summary summary;
    gumbel_error error;
    gumbel_summary_clear(&summary, 1);
    outcome *out = outcome_make(1, 1);
    assert_int_equal(gumbel_finish(NULL, NULL, &summary, 1, -1, 1, &out->output, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "batch");
    assert_int_equal(gumbel_finish(NULL, NULL, &summary, 1, 1, 0, &out->output, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "num_samples");
    assert_int_equal(gumbel_finish(NULL, NULL, NULL, 1, 1, 1, &out->output, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "summaries");
    assert_int_equal(gumbel_finish(NULL, NULL, &summary, 1, 1, 1, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output");
    assert_true(outcome_untouched(out));
    outcome_free(out);
}

/* The architectures that serve a group of kernels on each capability. */
static void assert_architectures_serve_groups(void)
{
    static const struct {
        const char *name;
        int first; /* capability; 1000: none */
    } groups[] = {{"portable", 75}, {"tensor", 80},  {"clusters", 90}, {"hopper", 90},
                  {"", 1000},       {"sm_90", 1000}, {NULL, 1000}};
    const char *architectures = gumbel_cuda_architectures();
    assert_true(architectures && (!*architectures || strstr(architectures, "sm_90a")));
    assert_string_equal(gumbel_cuda_architecture("hopper", 90), *architectures ? "sm_90a" : "");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        static const int none[] = {INT32_MIN, -90, 0, 70, 74};
        for (int j = 0; j < 5; j++)
            assert_string_equal(gumbel_cuda_architecture(groups[i].name, none[j]), "");
        for (int capability = 75; capability <= 130; capability++) {
            const char *serves = gumbel_cuda_architecture(groups[i].name, capability);
            assert_true(strstr(architectures, serves));
            assert_true(capability >= groups[i].first || !*serves);
            assert_true(i != 3 || capability == 90 || !*serves);
        }
    }
}

static void status_strings_and_versions(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", GUMBEL_VERSION_MAJOR, GUMBEL_VERSION_MINOR,
             GUMBEL_VERSION_PATCH);
    assert_int_equal(gumbel_version(), GUMBEL_VERSION);
    assert_string_equal(gumbel_version_string(), version);
    assert_architectures_serve_groups();
    for (int i = -2; i < 100; i++) {
        const char *a = gumbel_status_string((gumbel_status)i);
        const char *b = gumbel_row_status_string((gumbel_row_status)i);
        assert_true(a && *a && !strchr(a, '\n'));
        assert_true(b && *b && !strchr(b, '\n'));
    }
    const char *names[] = {"auto", "reference", "avx2", "avx512", "neon", "unknown"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(gumbel_isa_name((gumbel_isa)i), names[i]);
    assert_true(gumbel_isa_available(GUMBEL_ISA_REFERENCE) == 1);
    assert_true(gumbel_isa_available((gumbel_isa)99) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_and_newer_struct_sizes),
        cmocka_unit_test(empty_batch_succeeds),
        cmocka_unit_test(single_token_vocabulary),
        cmocka_unit_test(noise_errors_name_the_field),
        cmocka_unit_test(finish_errors_name_the_field),
        cmocka_unit_test(status_strings_and_versions),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
