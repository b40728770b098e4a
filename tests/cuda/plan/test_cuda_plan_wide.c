/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of the wide portable kernels serves a call on GPUs with 100, 164 and 228 KiB of shared
 * memory a multiprocessor, and that its ring fits.
 */
#include "planned_calls.h"

#include "cuda/policy/wide_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const int kib[] = {100, 164, 228};
enum { SIZES = sizeof kib / sizeof *kib };

static gumbel_problem wide_problem(int64_t rows, int samples, int with_mass)
{
    gumbel_problem p = plan_problem(rows, 4096, 0);
    p.sampling.num_samples = samples;
    p.with_mass = with_mass;
    return p;
}

static void kernels_have_few_columns_and_deep_stages(void **state)
{
    static const struct {
        int64_t rows;
        int samples, with_mass;
        cuda_wide_kernel kernels[SIZES]; /* {0, 0}: none */
    } cases[] = {
        {32, 1, 0, {{0, 0}, {0, 0}, {0, 0}}},
        {33, 1, 0, {{64, 64}, {64, 128}, {64, 128}}},
        {64, 1, 1, {{64, 64}, {64, 128}, {64, 128}}},
        {65, 1, 0, {{128, 64}, {128, 64}, {128, 64}}},
        {65, 1, 1, {{64, 64}, {128, 64}, {128, 64}}},
        {128, 1, 0, {{128, 64}, {128, 64}, {128, 64}}},
        {129, 1, 0, {{64, 64}, {64, 128}, {64, 128}}},
        {192, 1, 1, {{64, 64}, {64, 128}, {64, 128}}},
        {193, 1, 0, {{128, 64}, {128, 64}, {128, 64}}},
        {257, 1, 0, {{128, 64}, {128, 64}, {128, 64}}},
        {5000, 1, 1, {{64, 64}, {128, 64}, {128, 64}}},
        {65, 2, 1, {{64, 64}, {64, 128}, {64, 128}}},
        {5000, 2, 0, {{64, 64}, {64, 128}, {64, 128}}},
        {64, 3, 0, {{0, 0}, {0, 0}, {0, 0}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int size = 0; size < SIZES; size++) {
            const gumbel_problem p =
                wide_problem(cases[i].rows, cases[i].samples, cases[i].with_mass);
            const int found = cuda_wide_kernel_for(&p, p.batch, kib[size] * 1024);
            const cuda_wide_kernel none = {0, 0}, k = found < 0 ? none : cuda_wide_kernels[found];
            assert_int_equal(k.columns, cases[i].kernels[size].columns);
            assert_int_equal(k.depth, cases[i].kernels[size].depth);
        }
}

/* Up to two samples, 33 rows and more have a wide kernel on every GPU; its ring has enough stages
 * and leaves the memory that the driver reserves. */
static void rings_fit(void **state)
{
    (void)state;
    for (int size = 0; size < SIZES; size++)
        for (int samples = 1; samples <= 17; samples++)
            for (int with_mass = 0; with_mass < 2; with_mass++)
                for (int64_t rows = CUDA_WIDE_ROWS_MIN; rows < 600; rows++) {
                    const int available = kib[size] * 1024;
                    const gumbel_problem p = wide_problem(rows, samples, with_mass);
                    const int found = cuda_wide_kernel_for(&p, rows, available);
                    assert_int_equal(found >= 0, samples <= 2);
                    if (found < 0)
                        continue;
                    const cuda_wide_kernel k = cuda_wide_kernels[found];
                    const int stages = cuda_wide_stages(k, samples, with_mass, available);
                    assert_in_range(stages, CUDA_WIDE_STAGES_MIN, CUDA_WIDE_STAGES_MAX);
                    assert_true(k.columns * samples <= CUDA_SM80_STATES);
                    assert_true(cuda_wide_bytes(k, samples, with_mass, stages) +
                                    CUDA_RESERVED_BYTES <=
                                available);
                }
}

/* Rows that begin at multiples of 16 bytes, with a D that is not a multiple of 8, are served 32 at
 * once. */
static void odd_hidden_sizes_are_served(void **state)
{
    (void)state;
    const cuda_device ampere = plan_device(0);
    for (int remainder = 0; remainder < 8; remainder++) {
        gumbel_problem p = wide_problem(64, 1, 1);
        p.hidden_size = p.weight.cols = p.hidden.cols = 4096 - remainder;
        assert_string_equal(plan_rungs(&ampere, &p, 0), "tensor");
        assert_int_equal(cuda_wide_kernel_for(&p, p.batch, ampere.shared_bytes) >= 0,
                         remainder == 0);
        assert_int_equal(cuda_sm80_rows_of(&p, ampere.shared_bytes), 32);
    }
}

/* A launch of the narrow kernels fits every GPU, for any samples. */
static void narrow_launches_fit(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES * CUDA_SM80_STATES / cuda_sm80_widths[0]; i++)
        for (int mass = 0; mass < 2; mass++) {
            const int available = kib[i % SIZES] * 1024, samples = 1 + i / SIZES;
            const gumbel_problem p = wide_problem(64, samples, mass);
            const int rows = cuda_sm80_rows_of(&p, available);
            assert_in_range(rows * samples, 1, CUDA_SM80_STATES);
            assert_in_range(cuda_sm80_shared_bytes(rows, samples, mass, 0), 1,
                            available - CUDA_RESERVED_BYTES);
        }
    gumbel_problem p = wide_problem(64, 4, 1);
    assert_int_equal(cuda_sm80_rows_of(&p, 164 * 1024), 32);
    assert_int_equal(cuda_sm80_rows_of(&p, 100 * 1024), 16);
    p.with_mass = 0;
    assert_int_equal(cuda_sm80_rows_of(&p, 100 * 1024), 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_have_few_columns_and_deep_stages),
        cmocka_unit_test(rings_fit),
        cmocka_unit_test(odd_hidden_sizes_are_served),
        cmocka_unit_test(narrow_launches_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
