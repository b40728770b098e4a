/* SPDX-License-Identifier: Apache-2.0
 *
 * Workspace sizes: the formula of gumbel.h, growth with the limits, and an error for each invalid
 * limit.
 */
#include "gumbel/drafts.h"

#include "fixtures.h"
#include "outcome.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_sizes_match_the_header_formula),
        cmocka_unit_test(workspace_size_and_most),
        cmocka_unit_test(limits_cover_verifications),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
