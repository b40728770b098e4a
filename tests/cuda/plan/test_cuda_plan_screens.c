/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that the CUDA backend plans with a screen, and its explanations of calls without one.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A screen is used where it was measured to be faster, or where preferred, for calls it supports.
 */
static void screens_are_used_where_faster(void **state)
{
    cuda_device hopper = plan_device(1), ampere = plan_device(0);
    gumbel_problem rows = plan_problem(CUDA_SCREEN_ROWS_MAX, 4096, 0), few = rows, p = rows;
    (void)state;
    assert_string_equal(plan_rungs(&hopper, &rows, 0), "hopper");
    rows.screen = few.screen = p.screen = plan_data;
    few.batch = 1;
    assert_string_equal(plan_rungs(&hopper, &rows, 0), "screen");
    assert_string_equal(plan_rungs(&hopper, &few, 0), "screen");
    p.batch = CUDA_SCREEN_ROWS_MAX + 1;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper");
    p.batch = CUDA_SCREEN_ROWS_MAX;
    p.first_token = 32;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper");
    p.first_token = 0;
    p.with_mass = 1;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper");
    /* Truncated rows: all samples are drawn from one kept set. */
    p.with_mass = 0;
    p.features = GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_MASK;
    p.truncation.top_p.data = (float *)plan_data;
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper cluster");
    p.truncation.min_p.data = (float *)plan_data;
    p.truncation.order = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    p.truncation.min_p.data = NULL;
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    p.truncation.top_k.data = (int32_t *)plan_data;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    p.features |= GUMBEL_FEATURE_PENALTIES;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper cluster"); /* of lists */
    p.history.prompt = p.history.output = (uint32_t *)plan_data;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    p.features &= ~(uint32_t)GUMBEL_FEATURE_PENALTIES;
    p.truncation.order = GUMBEL_ORDER_JOINT;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper cluster");
    p.truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    p.sampling.num_samples = 4;
    p.features |= GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor blocks-grid");
    p.hidden_size = p.weight.cols = p.hidden.cols = CUDA_SCREEN_TRUNCATED_HIDDEN_MAX;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    p.hidden_size = p.weight.cols = p.hidden.cols = CUDA_SCREEN_TRUNCATED_HIDDEN_MAX + 64;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper bounded");
    plan_force_rungs(&hopper, "screen-truncated");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-truncated");
    p.batch = CUDA_SCREEN_ROWS_MAX + 1;
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper bounded");
    plan_force_rungs(&hopper, "");
    few.hidden_size = few.weight.cols = few.hidden.cols = 64;
    assert_string_equal(plan_rungs(&hopper, &few, 0), "hopper");
    plan_force_rungs(&hopper, "screen");
    assert_string_equal(plan_rungs(&hopper, &few, 0), "screen");
    plan_force_rungs(&hopper, "-screen");
    assert_string_equal(plan_rungs(&hopper, &rows, 0), "hopper");
}

/* Other GPUs draw plainly with a screen of bytes; so does a Hopper GPU without its own kernels, or
 * for a head that these do not support. */
static void bytes_are_used_on_every_gpu(void **state)
{
    cuda_device hopper = plan_device(1), ampere = plan_device(0), ada = plan_device(0);
    const gumbel_problem rows = plan_problem(CUDA_SCREEN_SM80_DRAWS, 4096, 0);
    gumbel_problem p = rows;
    (void)state;
    ada.base.capability = 89;
    ada.shared_bytes = 100 * 1024;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor");
    p.screen = plan_data;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "screen-tensor");
    assert_string_equal(plan_rungs(&ada, &p, 0), "screen-tensor");
    ada.shared_bytes = 64 * 1024;
    assert_string_equal(plan_rungs(&ada, &p, 0), "tensor");
    p.features = GUMBEL_FEATURE_MASK;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "screen-tensor");
    p.batch = 16;
    p.sampling.num_samples = 2;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "screen-tensor");
    p.sampling.num_samples = 4; /* more draws than pay for a screen */
    p.features = 0;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor");
    plan_force_rungs(&ampere, "screen-tensor");
    assert_string_equal(plan_rungs(&ampere, &p, 0), "screen-tensor");
    plan_force_rungs(&ampere, "");
    p.features = GUMBEL_FEATURE_MASK;
    p.batch = 1;
    p.sampling.num_samples = 17; /* more than the full pass draws */
    assert_string_equal(plan_rungs(&ampere, &p, 0), "naive draw-edits");
    p.sampling.num_samples = 1;
    p.screen_format = GUMBEL_SCREEN_NIBBLES;
    p.features = 0;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor");
    p.screen_format = GUMBEL_SCREEN_BYTES;
    p.hidden_size = p.weight.cols = p.hidden.cols = 4100;
    p.weight.stride = p.hidden.stride = 4104;
    assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor");
    p = rows;
    p.screen = plan_data;
    plan_force_rungs(&hopper, "-screen");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "hopper");
    plan_force_rungs(&hopper, "-hopper");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-tensor");
    plan_force_rungs(&hopper, "-hopper,-tensor");
    assert_string_equal(plan_rungs(&hopper, &p, 0), "naive");
    plan_force_rungs(&hopper, "");
    p.vocab = p.weight.rows = p.end_token = 151935; /* not a multiple of 16 */
    assert_string_equal(plan_rungs(&hopper, &p, 0), "screen-tensor");
}

/* Asserts that the explanation of a call holds `line`. */
static void assert_explained(const cuda_device *device, const gumbel_problem *p, const char *line)
{
    char text[4096];
    gumbel_text into = {text, sizeof text, 0};
    assert_int_equal(cuda_explain_call(&device->base, p, &into, NULL), GUMBEL_OK);
    if (!strstr(text, line))
        fail_msg("'%s' is missing from:\n%s", line, text);
}

/* explain() names the limit that a call with a screen exceeds. */
static void screen_limits_are_explained(void **state)
{
    const cuda_device hopper = plan_device(1), ampere = plan_device(0);
    const gumbel_problem rows = plan_problem(32, 4096, 0);
    gumbel_problem p = rows;
    (void)state;
    assert_explained(&hopper, &p, "not screen: the head has no screen\n");
    p.screen = plan_data;
    assert_explained(&hopper, &p, "draw: screen: ");
    assert_explained(&ampere, &p, "not screen: the GPU is not of capability 9.0\n");
    assert_explained(&ampere, &p, "draw: screen-tensor: ");
    p.screen_format = GUMBEL_SCREEN_NIBBLES;
    assert_explained(&ampere, &p,
                     "not screen-tensor: a screen of nibbles is read on GPUs of capability 9.0 ");
    p.screen_format = GUMBEL_SCREEN_BYTES;
    p.features = GUMBEL_FEATURE_TRUNCATION;
    p.truncation.top_k.data = (int32_t *)plan_data;
    assert_explained(&ampere, &p, "not screen-truncated: the GPU is not of capability 9.0\n");
    assert_explained(&ampere, &p, "not screen-tensor: does not support truncation, top_k\n");
    p.truncation.top_k.data = NULL;
    p.features = 0;
    p.sampling.num_samples = 2;
    assert_explained(&ampere, &p,
                     "not screen-tensor: more than 32 draws are faster by the full pass\n");
    p.sampling.num_samples = 3;
    assert_explained(&hopper, &p,
                     "not screen: there are more than 64 draws (rows times samples)\n");
    p.sampling.num_samples = 1;
    p.soft_cap = 30;
    assert_explained(&hopper, &p, "not screen: does not support soft-cap\n");
    p.soft_cap = 0;
    p.first_token = 32;
    assert_explained(&hopper, &p, "not screen: first_token is not a multiple of 64\n");
    p.first_token = 0;
    p.hidden.dtype = GUMBEL_FLOAT32;
    assert_explained(&hopper, &p,
                     "not screen: weights and hidden states are not both bfloat16 or ");
    p = plan_problem(32, 1024, 0);
    p.screen = plan_data;
    assert_explained(&hopper, &p, "not screen: a head of fewer than 2^28 weights is faster by ");
    /* Truncated rows. */
    p = plan_problem(65, 4096, GUMBEL_FEATURE_TRUNCATION);
    p.screen = plan_data;
    p.truncation.top_p.data = (float *)plan_data;
    assert_explained(&hopper, &p, "not screen: does not support truncation, top_p\n");
    assert_explained(&hopper, &p, "not screen-truncated: supports only calls with min_p, top_k\n");
    p.truncation.top_k.data = (int32_t *)plan_data;
    assert_explained(&hopper, &p,
                     "not screen-truncated: there are more than 64 draws (rows times samples)\n");
    p = plan_problem(8, 16384, GUMBEL_FEATURE_TRUNCATION);
    p.screen = plan_data;
    p.truncation.top_k.data = (int32_t *)plan_data;
    assert_explained(&hopper, &p,
                     "not screen-truncated: truncated rows with a D above 8192 were not "
                     "measured\n");
    p.truncation.order = GUMBEL_ORDER_JOINT;
    p.truncation.top_p.data = (float *)plan_data;
    assert_explained(&hopper, &p, "not screen-truncated: does not support joint\n");
    p = plan_problem(8, 4096, GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PENALTIES);
    p.screen = plan_data;
    p.truncation.top_k.data = (int32_t *)plan_data;
    p.history.prompt = p.history.output = (uint32_t *)plan_data;
    p.scale = 0.5f;
    assert_explained(&hopper, &p,
                     "not screen-truncated: penalties are not supported with a scale other than "
                     "1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(screens_are_used_where_faster),
        cmocka_unit_test(bytes_are_used_on_every_gpu),
        cmocka_unit_test(screen_limits_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
