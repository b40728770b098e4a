/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches larger than any memory return an error at once: no call loops over the rows before it has
 * checked their number.
 */
#define _POSIX_C_SOURCE 200809L
#include "outcome.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS    (INT64_C(1) << 40)
#define SECONDS 60 /* a loop over all rows takes longer, and fails the test */

static gumbel_device *device;
static _Alignas(64) char memory[256]; /* used for every array */
static gumbel_error error;

static void assert_refused(gumbel_status status, gumbel_status wanted, const char *field)
{
    if (status != wanted)
        fail_msg("status %d: %s: %s", (int)status, error.field, error.message);
    assert_string_equal(error.field, field);
}

static void huge_batches_of_noise_return_an_error(void **state)
{
    float *noise = (float *)(void *)memory;
    (void)state;
    assert_refused(gumbel_prepare_noise(device, NULL, NULL, ROWS, 0, 1, NULL, 0, &error),
                   GUMBEL_ERROR_ARGUMENT, "noise");
    assert_refused(
        gumbel_prepare_noise(device, NULL, NULL, ROWS, 0, INT64_C(1) << 31, noise, 0, &error),
        GUMBEL_ERROR_ARGUMENT, "noise_stride");
    assert_refused(gumbel_prepare_noise(device, NULL, NULL, ROWS + 1, 0, 1, noise, 0, &error),
                   GUMBEL_ERROR_ARGUMENT, "batch");
}

static gumbel_logits logits_of(int64_t rows)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(memory, GUMBEL_FLOAT32, rows, 1, 0)};
}

/* The error is a small workspace, or a size beyond the address space. */
static void huge_batches_of_draws_return_an_error(void **state)
{
    static const float temperature = 0.5f;
    int32_t *tokens = (int32_t *)(void *)memory;
    float *rows = (float *)(void *)memory;
    const gumbel_output output = {.struct_size = sizeof output, .tokens = tokens};
    const gumbel_sampling one = {.struct_size = sizeof one,
                                 .temperature = {&temperature, GUMBEL_SAME}};
    (void)state;
    for (int bits = 40; bits <= 60; bits += 5) {
        const gumbel_logits logits = logits_of(INT64_C(1) << bits);
        for (int i = 0; i < 2; i++) {
            const gumbel_sampling *how = i ? &one : NULL;
            const gumbel_status found[] = {
                gumbel_sample_logits(device, NULL, &logits, how, &output, memory, 64, &error),
                gumbel_partial_logits(device, NULL, &logits, how, (gumbel_summary *)(void *)memory,
                                      memory, 64, &error),
                gumbel_process_logits(device, NULL, &logits, how, rows, 0, memory, 64, &error),
                gumbel_softmax(device, NULL, &logits, how, rows, 0, memory, 64, &error),
            };
            for (int k = 0; k < 4; k++)
                if (found[k] != GUMBEL_ERROR_ARGUMENT && found[k] != GUMBEL_ERROR_WORKSPACE)
                    fail_msg("call %d of 2^%d rows: status %d", k, bits, (int)found[k]);
        }
    }
}

static void huge_batches_of_summaries_return_an_error(void **state)
{
    const gumbel_output output = {.struct_size = sizeof output,
                                  .tokens = (int32_t *)(void *)memory};
    (void)state;
    assert_refused(gumbel_finish(NULL, NULL, (gumbel_summary *)(void *)memory, 65536, ROWS, 65536,
                                 &output, &error),
                   GUMBEL_ERROR_ARGUMENT, "batch");
}

static int open_shared(void **state)
{
    (void)state;
    device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    alarm(SECONDS);
    return 0;
}

static int close_shared(void **state)
{
    (void)state;
    alarm(0);
    gumbel_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_batches_of_noise_return_an_error),
        cmocka_unit_test(huge_batches_of_draws_return_an_error),
        cmocka_unit_test(huge_batches_of_summaries_return_an_error),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
