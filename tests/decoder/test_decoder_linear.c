/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the matrix products of the trunk with plain loops in double. All code paths give equal
 * bits.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "decoder/model/attention.h"
#include "decoder/model/linear.h"

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* In [-1, 1). */
static float next_value(uint32_t *seed) { return (float)next_random(seed) / 8388608.0f - 1.0f; }

/* Allocates `count` random weights of a dtype; the allocation ends at the last weight. */
static void *random_weights(gumbel_dtype dtype, int64_t count, uint32_t seed, float *widened)
{
    size_t size = dtype == GUMBEL_FLOAT32 ? 4 : 2;
    unsigned char *bytes = malloc((size_t)count * size);
    for (int64_t i = 0; i < count; i++) {
        float value = next_value(&seed);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if (dtype == GUMBEL_FLOAT32) {
            memcpy(bytes + 4 * i, &bits, 4);
        } else if (dtype == GUMBEL_BFLOAT16) {
            memcpy(bytes + 2 * i, (char *)&bits + 2, 2);
        } else {
            uint16_t half =
                (uint16_t)(next_random(&seed) & 0xbfff); /* |value| < 2, including subnormals */
            memcpy(bytes + 2 * i, &half, 2);
        }
    }
    linear_widen(bytes, dtype, count, widened);
    return bytes;
}

static void check_product(pool *p, gumbel_dtype dtype, int64_t rows, int64_t cols, int32_t n)
{
    float *widened = malloc((size_t)(rows * cols) * sizeof *widened);
    gumbel_tensor weight = {.data = random_weights(dtype, rows * cols, 5, widened),
                            .dtype = dtype,
                            .rows = rows,
                            .cols = cols};
    float *x = malloc((size_t)(n * cols) * sizeof *x);
    float *out = malloc((size_t)(n * rows) * sizeof *out);
    float *single = malloc((size_t)rows * sizeof *single);
    float *scratch = malloc(linear_count_scratch(p, cols, n) * sizeof *scratch);
    uint32_t seed = 99;
    for (int64_t i = 0; i < n * cols; i++) {
        x[i] = next_value(&seed);
    }
    linear_output output = {&weight, out};
    linear_multiply(p, &output, 1, x, n, scratch);
    for (int32_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, size = 0;
            for (int64_t c = 0; c < cols; c++) {
                double product = (double)widened[r * cols + c] * x[i * cols + c];
                sum += product;
                size += fabs(product);
            }
            /* 16 lanes with a chain of cols / 16 roundings each, and 4 roundings to add the
             * lanes. */
            double bound = (cols / 16.0 + 6) * 6e-8 * size;
            assert_true(fabs(out[i * rows + r] - sum) <= bound);
        }
        linear_output alone = {&weight, single};
        linear_multiply(p, &alone, 1, x + i * cols, 1, scratch);
        assert_memory_equal(single, out + i * rows, (size_t)rows * sizeof *single);
    }
    free((void *)(uintptr_t)weight.data);
    free(widened);
    free(x);
    free(out);
    free(single);
    free(scratch);
}

static void products_match_double(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 100};
    static const int32_t batches[] = {1, 2, 4, 5, 9};
    for (size_t t = 0; t < 3; t++) {
        for (size_t c = 0; c < sizeof sizes / sizeof sizes[0]; c++) {
            for (size_t n = 0; n < sizeof batches / sizeof batches[0]; n++) {
                check_product(*state, dtypes[t], 1 + (int64_t)(c + n) % 9, sizes[c], batches[n]);
            }
        }
        check_product(*state, dtypes[t], 1030, 260, 3);
    }
}

static void every_half_is_widened_exactly(void **state)
{
    (void)state;
    static uint16_t halves[65536];
    static float widened[65536];
    for (uint32_t i = 0; i < 65536; i++) {
        halves[i] = (uint16_t)i;
    }
    linear_widen(halves, GUMBEL_FLOAT16, 65536, widened);
    for (uint32_t i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31;
        double fraction = i & 1023;
        double want = exponent == 0    ? ldexp(fraction, -24)
                      : exponent == 31 ? (fraction > 0 ? NAN : INFINITY)
                                       : ldexp(1024 + fraction, exponent - 25);
        want = i >> 15 ? -want : want;
        assert_true(isnan(want) ? isnan(widened[i]) : widened[i] == want);
    }
    linear_widen(halves, GUMBEL_BFLOAT16, 65536, widened);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &widened[i], 4);
        assert_int_equal(bits, i << 16);
    }
}

static void attention_is_a_weighted_mean(void **state)
{
    (void)state;
    enum { DIM = 20, COUNT = 100, STRIDE = 24 };
    static float query[DIM], keys[COUNT * STRIDE], values[COUNT * STRIDE], out[DIM];
    uint32_t seed = 3;
    for (int i = 0; i < DIM; i++) {
        query[i] = 4 * next_value(&seed);
    }
    for (int i = 0; i < COUNT * STRIDE; i++) {
        keys[i] = 4 * next_value(&seed);
        values[i] = next_value(&seed);
    }
    for (int count = 1; count <= COUNT; count++) {
        double mass = 0, sum[DIM] = {0};
        for (int j = 0; j < count; j++) {
            double score = 0;
            for (int i = 0; i < DIM; i++) {
                score += (double)query[i] * keys[j * STRIDE + i];
            }
            double weight = exp(score / sqrt(DIM));
            mass += weight;
            for (int i = 0; i < DIM; i++) {
                sum[i] += weight * values[j * STRIDE + i];
            }
        }
        attention_mix(&(attention_query){.query = query,
                                         .keys = keys,
                                         .values = values,
                                         .stride = STRIDE,
                                         .count = count,
                                         .head_dim = DIM,
                                         .tree_begin = count,
                                         .out = out});
        for (int i = 0; i < DIM; i++) {
            assert_true(fabs(out[i] - sum[i] / mass) < 1e-5);
        }
    }
}

static void mark_index(void *argument, int32_t index) { ((int *)argument)[index]++; }

static void pools_survive_fork(void **state)
{
    enum { ITEMS = 100 };
    int done[ITEMS] = {0}, status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV,
               SIG_DFL); /* otherwise cmocka's handler would run the parent's tests in the child */
        alarm(20);
        pool_run(*state, ITEMS, mark_index, done);
        pool_free(*state);
        for (int i = 0; i < ITEMS; i++) {
            if (done[i] != 1) {
                _exit(1);
            }
        }
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pool_run(*state, ITEMS, mark_index, done);
    assert_int_equal(done[ITEMS - 1], 1);
}

static int set_up(void **state) { return pool_new(3, (pool **)state, NULL); }

static int tear_down(void **state)
{
    pool_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_double),
        cmocka_unit_test(every_half_is_widened_exactly),
        cmocka_unit_test(attention_is_a_weighted_mean),
        cmocka_unit_test(pools_survive_fork),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
