/* SPDX-License-Identifier: Apache-2.0
 *
 * The cooperative launches that serve rows on GPUs without clusters, by their multiprocessors and
 * shared memory.
 */
#include "planned_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* GPUs without clusters that cannot run all CTAs of a row at the same time, and rows that do not
 * fit: as before there were cooperative launches. */
static void rows_select_grids(void **state)
{
    static const struct {
        int multiprocessors, shared_kib, cooperative;
        int64_t vocab;
        const char *request, *program;
    } cases[] = {
        {108, 164, 1, 151936, "grid", "program-grid"},
        {108, 164, 1, 532480, "grid", "program-grid"},
        {108, 164, 1, 532481, "two-pass", "none"},
        {128, 100, 1, 270336, "grid", "program-grid"},
        {128, 100, 1, 270337, "two-pass", "none"},
        {16, 100, 1, 151936, "grid", "program-grid"},
        {15, 100, 1, 151936, "two-pass", "none"}, /* one CTA a multiprocessor */
        {8, 164, 1, 151936, "grid", "program-grid"},
        {7, 164, 1, 151936, "two-pass", "none"}, /* two */
        {108, 164, 0, 151936, "two-pass", "sampling.truncation.programs"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_device device = plan_device(0);
        gumbel_problem request = plan_problem(3, 0, GUMBEL_FEATURE_RANKS), program;
        gumbel_cursor cursor = {0};
        cuda_plan plan;
        device.multiprocessors = cases[i].multiprocessors;
        device.shared_bytes = cases[i].shared_kib * 1024;
        device.truncated_grid = cases[i].cooperative ? device.truncated_grid : NULL;
        request.vocab = request.end_token = cases[i].vocab;
        program = request;
        plan_program(&program, plan_top_k_program);
        assert_string_equal(plan_rungs(&device, &request, 0), cases[i].request);
        assert_string_equal(plan_rungs(&device, &program, 0), cases[i].program);
        if (cases[i].program[0] != 'p')
            continue;
        assert_int_equal(cuda_plan_call(&plan, &device, &program, 0, NULL), GUMBEL_OK);
        const cuda_workspace workspace = cuda_carve_plan(&plan, &cursor, &device, &program);
        assert_null(workspace.logits);
        assert_true(cursor.used > sizeof(uint64_t) * CUDA_GRID_MEMORY_WORDS);
    }
}

/* Block maxima beyond the default shared memory require a CTA of CUDA_BLOCKS_BYTES_MAX. */
static void blocks_fit_shared_memory(void **state)
{
    static const struct {
        int shared_kib;
        int64_t vocab;
        const char *rows;
    } cases[] = {
        {64, 120000, "blocks-grid"},  {64, 122880, "blocks-grid"},  {64, 122881, "alone"},
        {100, 151936, "blocks-grid"}, {100, 270336, "blocks-grid"}, {100, 270337, "two-pass"},
        {164, 532480, "blocks-grid"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_device device = plan_device(0);
        gumbel_problem request = plan_problem(64, 0, GUMBEL_FEATURE_TRUNCATION);
        request.truncation.top_k.data = (int32_t *)plan_data;
        device.shared_bytes = cases[i].shared_kib * 1024;
        request.vocab = request.end_token = cases[i].vocab;
        assert_string_equal(plan_rungs(&device, &request, 0), cases[i].rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_select_grids),
        cmocka_unit_test(blocks_fit_shared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
