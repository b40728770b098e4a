/* SPDX-License-Identifier: Apache-2.0
 *
 * How a device is chosen by options and environment, and what it reports of itself.
 */
#define _POSIX_C_SOURCE 200809L
#include "fixtures.h"
#include "outcome.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

/* Without a GPU, the error of "cuda:0" gives the reason. */
static void assert_gpu_opens_or_reason(void)
{
    const gumbel_device_options cuda = {.struct_size = sizeof cuda, .device = "cuda:0"};
    gumbel_device *device;
    gumbel_error error = {"", ""};
    if (gumbel_open(&cuda, &device, &error) == GUMBEL_OK)
        gumbel_close(device);
    else
        assert_true(strstr(error.message, "no CUDA kernels") ||
                    strstr(error.message, "NVIDIA driver") ||
                    strstr(error.message, "CUDA driver") || strstr(error.message, "CUDA devices") ||
                    strstr(error.message, "capability"));
    if (!*gumbel_cuda_architectures())
        assert_true(strstr(error.message, "no CUDA kernels"));
}

static void open_options_are_validated(void **state)
{
    static const struct {
        gumbel_device_options options;
        gumbel_status status;
        const char *field;
    } refused[] = {
        {{.device = "cuda"}, GUMBEL_ERROR_UNSUPPORTED, "options.device"},
        {{.device = "cuda:9999"}, GUMBEL_ERROR_UNSUPPORTED, "options.device"},
        {{.isa = (gumbel_isa)99}, GUMBEL_ERROR_ARGUMENT, "options.isa"},
        {{.threads = -1}, GUMBEL_ERROR_ARGUMENT, "options.threads"},
        {{.threads = 1025}, GUMBEL_ERROR_ARGUMENT, "options.threads"},
        {{.tile = 65}, GUMBEL_ERROR_ARGUMENT, "options.tile"},
        {{.tile = -64}, GUMBEL_ERROR_ARGUMENT, "options.tile"},
        {{.tile = 8192}, GUMBEL_ERROR_ARGUMENT, "options.tile"},
        {{.struct_size = 3}, GUMBEL_ERROR_ARGUMENT, "options"},
    };
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

    assert_gpu_opens_or_reason();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_open_refused(refused[i].options, refused[i].status, refused[i].field);
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
        cmocka_unit_test(open_options_are_validated),
        cmocka_unit_test(environment_selects_the_isa),
        cmocka_unit_test(device_info_describes_the_device),
        cmocka_unit_test(rung_option_requires_cuda),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
