/* SPDX-License-Identifier: Apache-2.0
 *
 * The rest of the public interface: how a device is chosen, struct sizes, workspace sizes, trivial
 * problems, strings and versions.
 */
#define _POSIX_C_SOURCE 200809L
#include "gumbel/drafts.h"

#include "fixtures.h"
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------------- structs ---- */

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

/* ------------------------------------------------------------------------------- devices ---- */

static void assert_open_refused(gumbel_device_options options, gumbel_status status,
                                const char *field)
{
    gumbel_error error = {"", ""};
    gumbel_device *device = (gumbel_device *)&error;
    options.struct_size = options.struct_size ? options.struct_size : sizeof options;
    assert_int_equal(gumbel_open(&options, &device, &error), status);
    assert_null(device);
    if (strcmp(error.field, field) != 0)
        fail_msg("the error names %s, not %s", error.field, field);
    assert_int_equal(gumbel_open(&options, &device, NULL), status);
}

static void open_options_are_validated(void **state)
{
    (void)state;
    gumbel_device *device = NULL;
    assert_int_equal(gumbel_open(NULL, &device, NULL), GUMBEL_OK);
    gumbel_close(device);
    gumbel_close(NULL);
    gumbel_device_options cpu = {.struct_size = sizeof cpu, .device = "cpu"};
    assert_int_equal(gumbel_open(&cpu, &device, NULL), GUMBEL_OK);
    gumbel_close(device);
    gumbel_error error;
    assert_int_equal(gumbel_open(NULL, NULL, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "device");

    assert_open_refused((gumbel_device_options){.device = "cuda"}, GUMBEL_ERROR_UNSUPPORTED,
                        "options.device");
    assert_open_refused((gumbel_device_options){.device = "cuda:9999"}, GUMBEL_ERROR_UNSUPPORTED,
                        "options.device");
    gumbel_device_options cuda = {.struct_size = sizeof cuda, .device = "cuda:0"};
    if (gumbel_open(&cuda, &device, &error) == GUMBEL_OK)
        gumbel_close(device);
    else
        assert_true(strstr(error.message, "no CUDA kernels") ||
                    strstr(error.message, "NVIDIA driver") ||
                    strstr(error.message, "CUDA driver") || strstr(error.message, "CUDA devices") ||
                    strstr(error.message, "capability"));
    if (!*gumbel_cuda_architectures())
        assert_true(strstr(error.message, "no CUDA kernels"));
    assert_open_refused((gumbel_device_options){.isa = (gumbel_isa)99}, GUMBEL_ERROR_ARGUMENT,
                        "options.isa");
    assert_open_refused((gumbel_device_options){.threads = -1}, GUMBEL_ERROR_ARGUMENT,
                        "options.threads");
    assert_open_refused((gumbel_device_options){.threads = 1025}, GUMBEL_ERROR_ARGUMENT,
                        "options.threads");
    assert_open_refused((gumbel_device_options){.tile = 65}, GUMBEL_ERROR_ARGUMENT, "options.tile");
    assert_open_refused((gumbel_device_options){.tile = -64}, GUMBEL_ERROR_ARGUMENT,
                        "options.tile");
    assert_open_refused((gumbel_device_options){.tile = 8192}, GUMBEL_ERROR_ARGUMENT,
                        "options.tile");
    assert_open_refused((gumbel_device_options){.struct_size = 3}, GUMBEL_ERROR_ARGUMENT,
                        "options");
    for (gumbel_isa isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++)
        if (!gumbel_isa_available(isa))
            assert_open_refused((gumbel_device_options){.isa = isa}, GUMBEL_ERROR_UNSUPPORTED,
                                "options.isa");
}

static gumbel_isa isa_of_default(void)
{
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
    gumbel_close(device);
    return info.isa;
}

/* GUMBEL_ISA selects the ISA if the options do not; an unknown name is an error. */
static void environment_selects_the_isa(void **state)
{
    (void)state;
    const char *kept = getenv("GUMBEL_ISA");
    char *restore = kept ? strdup(kept) : NULL;
    gumbel_isa isas[4];
    int count = list_isas(isas);
    for (int i = 0; i < count; i++) {
        setenv("GUMBEL_ISA", gumbel_isa_name(isas[i]), 1);
        assert_int_equal(isa_of_default(), isas[i]);
        gumbel_device_info info = {.struct_size = sizeof info};
        gumbel_device *device = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
        assert_int_equal(gumbel_describe(device, &info), GUMBEL_OK);
        assert_int_equal(info.isa, GUMBEL_ISA_REFERENCE);
        gumbel_close(device);
    }
    setenv("GUMBEL_ISA", "auto", 1);
    assert_int_equal(isa_of_default(), isas[count - 1]);
    setenv("GUMBEL_ISA", "sse9", 1);
    gumbel_device *none = NULL;
    gumbel_error error = {"", ""};
    assert_int_not_equal(gumbel_open(NULL, &none, &error), GUMBEL_OK);
    assert_null(none);
    print_message("GUMBEL_ISA=sse9: %s: %s\n", error.field, error.message);
    if (restore)
        setenv("GUMBEL_ISA", restore, 1);
    else
        unsetenv("GUMBEL_ISA");
    free(restore);
}

static void device_info_describes_the_device(void **state)
{
    gumbel_device_info info;
    memset(&info, 0xA7, sizeof info);
    info.struct_size = offsetof(gumbel_device_info, tile);
    assert_int_equal(gumbel_describe(*state, &info), GUMBEL_OK);
    assert_int_equal(info.tile, (int32_t)0xA7A7A7A7);
    assert_int_equal(info.threads, 2);
    info.struct_size = sizeof info;
    assert_int_equal(gumbel_describe(*state, &info), GUMBEL_OK);
    assert_true(info.tile % 64 == 0 && info.tile >= 64 && info.tile <= 4096);
    assert_non_null(memchr(info.description, 0, sizeof info.description));
    print_message("%s, %s, %d threads, tile %d\n", info.description, gumbel_isa_name(info.isa),
                  (int)info.threads, (int)info.tile);
    assert_int_equal(gumbel_describe(NULL, &info), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_describe(*state, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_device_capability(*state), 0);
    assert_int_equal(gumbel_device_capability(NULL), 0);
}

/* ----------------------------------------------------------------------------- workspaces ---- */

/* The size is at most 5% above and at most 50% below the formula in gumbel.h. */
static void workspace_sizes_match_the_header_formula(void **state)
{
    static const int32_t threads[] = {1, 3, 64}, samples[] = {1, 8, 64};
    static const int64_t batches[] = {1, 4, 64, 256}, sizes[] = {0, 64, 4096};
    (void)state;
    for (int i = 0; i < 3 * 4 * 3 * 3; i++) {
        int32_t t = threads[i / 36], s = samples[i % 3];
        int64_t b = batches[i / 9 % 4], d = sizes[i / 3 % 3];
        gumbel_device *device = open_device(GUMBEL_ISA_AUTO, t, 0);
        size_t bytes;
        const gumbel_limits limits = {
            .struct_size = sizeof limits, .batch = b, .hidden_size = d, .num_samples = s};
        assert_int_equal(gumbel_workspace_most(device, &limits, &bytes, NULL), GUMBEL_OK);
        double stated = 48.0 * (t + 1) * (double)b * s + 17 * 1024.0 * t;
        if (d > 0)
            stated += 4.0 * (double)(b * d) + 832.0 * t * (double)b;
        if (!((double)bytes < 1.05 * stated && (double)bytes > 0.5 * stated))
            fail_msg("%d threads, B %d, D %d, S %d: %zu bytes, the formula gives %.0f", (int)t,
                     (int)b, (int)d, (int)s, bytes, stated);
        gumbel_close(device);
    }
}

/* gumbel_workspace_most() of plain calls within these sizes. */
static gumbel_status most_of(gumbel_device *device, int64_t batch, int64_t hidden_size,
                             int32_t samples, size_t *bytes, gumbel_error *error)
{
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = batch,
                                  .hidden_size = hidden_size,
                                  .num_samples = samples};
    return gumbel_workspace_most(device, &limits, bytes, error);
}

static void workspace_size_and_most(void **state)
{
    size_t bytes = 0, before = 0;
    for (int64_t batch = 0; batch <= 64; batch++) {
        assert_int_equal(most_of(*state, batch, 4096, 4, &bytes, NULL), GUMBEL_OK);
        assert_true(bytes >= before);
        before = bytes;
    }
    assert_int_equal(most_of(*state, 64, 4096, 5, &bytes, NULL), GUMBEL_OK);
    assert_true(bytes >= before);
    struct {
        const char *field;
        int64_t batch, hidden_size;
        int32_t samples;
    } bad[] = {
        {"limits.batch", -1, 8, 1},
        {"limits.batch", INT64_MAX, 8, 1},
        {"limits.batch", INT64_C(1) << 39, INT64_C(1) << 39, 65536},
        {"limits.hidden_size", 1, -8, 1},
        {"limits.hidden_size", 1, INT64_MAX, 1},
        {"limits.num_samples", 1, 8, -1},
        {"limits.num_samples", 1, 8, 65537},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gumbel_error error = {"", ""};
        bytes = 77;
        assert_int_equal(
            most_of(*state, bad[i].batch, bad[i].hidden_size, bad[i].samples, &bytes, &error),
            GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, bad[i].field);
        assert_int_equal(bytes, 77);
    }
    assert_int_equal(most_of(NULL, 1, 8, 1, &bytes, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(most_of(*state, 1, 8, 1, NULL, NULL), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_workspace_most(*state, NULL, &bytes, NULL), GUMBEL_ERROR_ARGUMENT);
    const gumbel_limits no_tokens = {.struct_size = sizeof no_tokens, .batch = 1, .requests = 1};
    assert_int_equal(gumbel_workspace_most(*state, &no_tokens, &bytes, NULL),
                     GUMBEL_ERROR_ARGUMENT);
}

static void limits_cover_verifications(void **state)
{
    size_t bytes = 0;
    gumbel_error error = {"", ""};
    for (int32_t nodes = -1; nodes <= GUMBEL_NODES_MAX + 1; nodes += GUMBEL_NODES_MAX + 2) {
        const gumbel_limits wrong = {.struct_size = sizeof wrong, .batch = 1, .max_nodes = nodes};
        assert_int_equal(gumbel_workspace_most(*state, &wrong, &bytes, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "limits.max_nodes");
    }
    const gumbel_limits huge = {
        .struct_size = sizeof huge, .batch = INT64_C(1) << 40, .max_nodes = GUMBEL_NODES_MAX};
    gumbel_status status = gumbel_workspace_most(*state, &huge, &bytes, &error);
    assert_true(status == GUMBEL_OK ? bytes > (size_t)1 << 50
                                    : strcmp(error.field, "limits.batch") == 0);
}

/* ----------------------------------------------------------------------- trivial problems ---- */

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

/* -------------------------------------------------------------------------------- strings ---- */

static void status_strings_and_versions(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", GUMBEL_VERSION_MAJOR, GUMBEL_VERSION_MINOR,
             GUMBEL_VERSION_PATCH);
    assert_int_equal(gumbel_version(), GUMBEL_VERSION);
    assert_string_equal(gumbel_version_string(), version);
    const char *architectures = gumbel_cuda_architectures();
    assert_true(architectures && (!*architectures || strstr(architectures, "sm_90a")));
    assert_string_equal(gumbel_cuda_architecture("hopper", 90), *architectures ? "sm_90a" : "");
    static const struct {
        const char *name;
        int first; /* capability; 1000: none */
    } groups[] = {{"portable", 75}, {"tensor", 80}, {"clusters", 90}, {"hopper", 90},
                  {"", 1000},       {"sm_90", 1000}, {NULL, 1000}};
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

/* gumbel_explain() truncates its text at the end of the buffer. */
static void explanations_fit_the_buffer(void **state)
{
    const float values[4] = {0};
    const int32_t k[1] = {2};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 4, 0)};
    const gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {k, 0}};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &cut};
    gumbel_error error;
    char text[1024], few[8];
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, text, sizeof text, &error),
                     GUMBEL_OK);
    assert_non_null(strstr(text, "rows: tiles: "));
    assert_int_equal(
        gumbel_explain(*state, NULL, &logits, &sampling, NULL, text, sizeof text, &error),
        GUMBEL_OK);
    assert_non_null(strstr(text, "rows: rows: "));
    assert_non_null(strstr(text, "not tiles: does not support truncation, top_k"));
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, few, sizeof few, &error),
                     GUMBEL_OK);
    assert_string_equal(few, "rows: t");
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, NULL, 0, &error), GUMBEL_OK);
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, NULL, 1, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "text");
    assert_int_equal(gumbel_explain(*state, NULL, NULL, NULL, NULL, text, 9, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "head");
}

/* gumbel_explain() returns an error for the values that the call rejects, and prints them
 * exactly. */
static void explanations_reject_invalid_values(void **state)
{
    static const struct {
        float value;
        const char *message;
    } cases[] = {
        {1.0000001f, "is 1.0000001; it must be in (0, 1]"},
        {2.0f, "is 2; it must be in (0, 1]"},
        {-0.1f, "is -0.1; it must be in (0, 1]"},
        {1234567.5f, "is 1234567.5; it must be in (0, 1]"},
        {INFINITY, "is inf; it must be in (0, 1]"},
    };
    const float values[4] = {0};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 4, 0)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gumbel_truncation cut = {.struct_size = sizeof cut, .top_p = {&cases[i].value, 0}};
        const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &cut};
        gumbel_error error;
        char text[1024];
        assert_int_equal(
            gumbel_explain(*state, NULL, &logits, &sampling, NULL, text, sizeof text, &error),
            GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "sampling.truncation.top_p[0]");
        assert_string_equal(error.message, cases[i].message);
    }
}

static void rung_option_requires_cuda(void **state)
{
    const gumbel_device_options options = {.struct_size = sizeof options, .rungs = "rows"};
    gumbel_device *device;
    gumbel_error error;
    (void)state;
    assert_int_equal(gumbel_open(&options, &device, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "options.rungs");
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_and_newer_struct_sizes),
        cmocka_unit_test(open_options_are_validated),
        cmocka_unit_test(environment_selects_the_isa),
        cmocka_unit_test(device_info_describes_the_device),
        cmocka_unit_test(workspace_size_and_most),
        cmocka_unit_test(explanations_fit_the_buffer),
        cmocka_unit_test(explanations_reject_invalid_values),
        cmocka_unit_test(rung_option_requires_cuda),
        cmocka_unit_test(workspace_sizes_match_the_header_formula),
        cmocka_unit_test(limits_cover_verifications),
        cmocka_unit_test(empty_batch_succeeds),
        cmocka_unit_test(single_token_vocabulary),
        cmocka_unit_test(noise_errors_name_the_field),
        cmocka_unit_test(finish_errors_name_the_field),
        cmocka_unit_test(status_strings_and_versions),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
