/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that the CUDA backend plans for programs on an H200 and on an A100.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint8_t SIGMA_T_MIN_P[GUMBEL_PROGRAM_LENGTH] = {
    GUMBEL_PROGRAM_TOP_N_SIGMA, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_MIN_P};
static const uint8_t TYPICAL_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TYPICAL_P,
                                                         GUMBEL_PROGRAM_TEMPERATURE};
static const uint8_t LESS_K_T[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_P_LESS, GUMBEL_PROGRAM_TOP_K,
                                                        GUMBEL_PROGRAM_TEMPERATURE};

/* Checks the rungs that serve a call on an H200 and on an A100. */
static void check_rungs(const gumbel_problem *p, uint64_t purpose, const char *hopper,
                        const char *ampere)
{
    const cuda_device h200 = plan_device(1), a100 = plan_device(0);
    assert_string_equal(plan_rungs(&h200, p, purpose), hopper);
    assert_string_equal(plan_rungs(&a100, p, purpose), ampere);
}

/* The first rule that can remove tokens decides; a rule without parameters is off. */
static void programs_select_rungs(void **state)
{
    gumbel_problem k = plan_problem(17, 0, 0), min_p = k, less = k, single = k;
    gumbel_problem head = plan_problem(4, 4096, 0);
    float *const parameters = (float *)plan_data;
    (void)state;
    plan_program(&k, plan_top_k_program);
    check_rungs(&k, 0, "program-pivots", "program-pivots-grid"); /* no top_k */
    k.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&k, 0, "program-blocks", "program-blocks-grid");
    k.programs.top_n_sigma.data = parameters;
    check_rungs(&k, 0, "program-blocks", "program-blocks-grid");
    check_rungs(&k, GUMBEL_CAPABILITY_ROWS, "program", "program-grid");
    k.features |= GUMBEL_FEATURE_ENTROPY;
    check_rungs(&k, 0, "program-blocks", "program-blocks-grid");
    k.features &= ~(uint32_t)GUMBEL_FEATURE_ENTROPY;
    k.batch = 16;
    check_rungs(&k, 0, "program", "program-blocks-grid");
    k.batch = 13;
    check_rungs(&k, 0, "program", "program-grid");
    plan_program(&min_p, SIGMA_T_MIN_P);
    min_p.truncation.min_p.data = parameters;
    check_rungs(&min_p, 0, "program-blocks", "program-blocks-grid");
    min_p.programs.temperature_range.data = parameters;
    check_rungs(&min_p, 0, "program", "program-grid");
    min_p.programs.temperature_range.data = NULL;
    min_p.programs.top_n_sigma.data = parameters;
    check_rungs(&min_p, 0, "program", "program-grid");
    plan_program(&less, LESS_K_T);
    less.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&less, 0, "program", "program-grid");
    plan_program(&single, TYPICAL_T);
    single.programs.typical_p.data = parameters;
    check_rungs(&single, 0, "program-pivots", "program-pivots-grid");
    single.programs.min_keep.data = (int32_t *)plan_data;
    check_rungs(&single, 0, "program", "program-grid");
    single.programs.min_keep.data = NULL;
    single.batch = 7;
    check_rungs(&single, 0, "program", "program-grid");
    plan_program(&head, TYPICAL_T);
    head.programs.typical_p.data = parameters;
    check_rungs(&head, 0, "hopper program-pivots", "tensor program-grid");
    plan_program(&head, plan_top_k_program);
    head.programs.typical_p.data = NULL;
    head.truncation.top_k.data = (int32_t *)plan_data;
    check_rungs(&head, 0, "hopper program-blocks", "tensor program-grid");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_select_rungs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
