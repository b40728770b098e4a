/* SPDX-License-Identifier: Apache-2.0
 *
 * Rungs that a list of names forces or excludes, and the errors of invalid lists.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void rungs_can_be_forced(void **state)
{
    cuda_device device = plan_device(1);
    gumbel_problem head = plan_problem(32, 4096, 0), logits = plan_problem(32, 0, 0);
    gumbel_problem cut = plan_problem(32, 4096, GUMBEL_FEATURE_TRUNCATION);
    (void)state;
    cut.truncation.top_k.data = (int32_t *)plan_data;
    plan_force_rungs(&device, "-hopper,-bounded,-blocks,-cluster");
    assert_string_equal(plan_rungs(&device, &head, 0), "tensor");
    assert_string_equal(plan_rungs(&device, &cut, 0), "tensor blocks-grid");
    gumbel_problem few = cut;
    few.truncation.top_k.data = NULL;
    few.truncation.min_p.data = (float *)plan_data;
    assert_string_equal(plan_rungs(&device, &few, 0), "tensor blocks-grid");
    plan_force_rungs(&device, "grid");
    assert_string_equal(plan_rungs(&device, &few, 0), "hopper grid");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper grid");
    plan_force_rungs(&device, "two-pass");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper two-pass");
    plan_force_rungs(&device, "-bounded,-blocks,-cluster,-blocks-grid");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper grid");
    plan_force_rungs(&device, "-bounded,-blocks,-cluster,-blocks-grid,-grid");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper two-pass");
    plan_force_rungs(&device, "naive,alone");
    assert_string_equal(plan_rungs(&device, &head, 0), "naive");
    assert_string_equal(plan_rungs(&device, &cut, 0), "naive alone");
    assert_string_equal(plan_rungs(&device, &logits, 0), "alone");
    plan_force_rungs(&device, "pivots");
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper bounded");
    plan_force_rungs(&device, "-naive,-tensor,-hopper");
    assert_string_equal(plan_rungs(&device, &head, 0), "none");
    assert_string_equal(plan_rungs(&device, &logits, 0), "draw");
    plan_force_rungs(&device, "");
    plan_force_rungs(&device, NULL);
    assert_string_equal(plan_rungs(&device, &cut, 0), "hopper bounded");
}

/* Logits stored outside the workspace: only those above a bound where that is faster. */
static void stored_logits_are_bounded(void **state)
{
    static const struct {
        int64_t batch;
        const char *names, *rows;
        int by_bounds, by_blocks;
    } stored[] = {
        {4, "", "blocks", 0, 1},          {5, "", "bounded", 1, 1},
        {64, "", "bounded", 1, 1},        {128, "", "bounded", 1, 1},
        {32, "-bounded", "blocks", 0, 1}, {256, "", "blocks", 0, 1},
        {32, "cluster", "cluster", 0, 0},
    };
    cuda_device device = plan_device(1), ampere = plan_device(0);
    gumbel_error error = {0};
    cuda_plan plan;
    (void)state;
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++) {
        gumbel_problem p = plan_problem(stored[i].batch, 4096, GUMBEL_FEATURE_TRUNCATION);
        p.truncation.top_k.data = (int32_t *)plan_data;
        plan_force_rungs(&device, stored[i].names);
        assert_int_equal(cuda_plan_stored(&plan, &device, &p, &error), GUMBEL_OK);
        assert_string_equal(plan.rows->rung.name, stored[i].rows);
        assert_int_equal((plan.product_outputs & CUDA_OUTPUT_SUBTILES) != 0, stored[i].by_bounds);
        assert_true(plan.stores_outside);
        assert_int_equal(cuda_plan_finds_top64(&plan, &p), stored[i].by_blocks);
        assert_int_equal(cuda_plan_stored(&plan, &ampere, &p, &error), GUMBEL_OK);
        assert_false(cuda_plan_finds_top64(&plan, &p));
    }
}

static void bad_names_are_refused(void **state)
{
    static const char *const names[] = {
        ",", "-", "hoper", "cluster,", "cluster, alone", "cluster,,alone"};
    static const char *const good[] = {"cluster,-hopper", "cluster"};
    cuda_rung_choice choice;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gumbel_error error = {0};
        gumbel_status status = cuda_read_rungs(&choice, names[i], "field", &error);
        assert_int_equal(status, GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "field");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(cuda_read_rungs(&choice, good[i], "field", NULL), GUMBEL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_logits_are_bounded),
        cmocka_unit_test(rungs_can_be_forced),
        cmocka_unit_test(bad_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
