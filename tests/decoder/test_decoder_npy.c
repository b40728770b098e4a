/* SPDX-License-Identifier: Apache-2.0
 *
 * .npy files: written arrays are read back; files with a false header are rejected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "decoder/arrays/npy.h"
#include "scratch_folder.h"

/* A file image: version, dictionary, `data` zero bytes. The caller frees it. */
static unsigned char *make_image(int major, const char *dictionary, size_t data, size_t *size)
{
    size_t prefix = major == 1 ? 10 : 12;
    size_t length = (prefix + strlen(dictionary) + 63) / 64 * 64 - prefix;
    unsigned char *bytes = calloc(1, prefix + length + data + 1);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)major;
    bytes[8] = (unsigned char)length;
    bytes[9] = (unsigned char)(length >> 8);
    memset(bytes + prefix, ' ', length);
    memcpy(bytes + prefix, dictionary, strlen(dictionary));
    *size = prefix + length + data;
    return bytes;
}

static void written_arrays_are_read_back(void **state)
{
    static const tensor_dtype dtypes[] = {TENSOR_F32, TENSOR_F16, TENSOR_I32, TENSOR_I64,
                                          TENSOR_U16, TENSOR_U32, TENSOR_U64};
    static const struct {
        int rank;
        int64_t shape[TENSOR_MAX_RANK];
    } shapes[] = {{0, {0}}, {1, {5}}, {2, {3, 4}}, {3, {2, 0, 7}}, {8, {1, 2, 1, 2, 1, 2, 1, 3}}};
    int64_t data[32];
    for (int i = 0; i < 32; i++) {
        data[i] = i * 0x0101010101010101;
    }
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t s = 0; s < 5; s++) {
            tensor_view array = {.dtype = dtypes[d], .data = data};
            decoder_error error;
            npy *file = NULL;
            const char *path = scratch_path(*state, "a.npy");
            assert_true(tensor_set_shape(&array, shapes[s].rank, shapes[s].shape));
            if (npy_write(path, &array, &error) != 0 || npy_open(path, &file, &error) != 0) {
                fail_msg("%s", error.message);
            }
            const tensor_view *back = npy_tensor(file);
            assert_int_equal(back->dtype, array.dtype);
            assert_int_equal(back->rank, array.rank);
            assert_memory_equal(back->shape, array.shape, sizeof array.shape);
            assert_int_equal(back->bytes, array.bytes);
            assert_memory_equal(back->data, data, array.bytes);
            npy_close(file);
        }
    }
}

static void a_failed_write_leaves_nothing(void **state)
{
    tensor_view array = {.dtype = TENSOR_F64, .data = ""};
    decoder_error error = {""};
    assert_true(tensor_set_shape(&array, 1, (int64_t[]){0}));
    assert_int_equal(npy_write(scratch_path(*state, "x.npy"), &array, &error), -1);
    assert_non_null(strstr(error.message, "x.npy: dtype: F64"));
    array.dtype = TENSOR_F32;
    assert_int_equal(npy_write(scratch_path(*state, "none/x.npy"), &array, &error), -1);
    /* The target is a folder, so the rename fails after the data was written. */
    assert_int_equal(mkdir(scratch_path(*state, "folder.npy"), 0700), 0);
    assert_int_equal(npy_write(scratch_path(*state, "folder.npy"), &array, &error), -1);
    assert_non_null(strstr(error.message, "folder.npy: cannot be written"));
    assert_int_equal(remove(scratch_path(*state, "folder.npy")), 0);
    /* The folder must be empty, otherwise remove() fails. */
    assert_int_equal(remove(*state), 0);
    assert_int_equal(mkdir(*state, 0700), 0);
}

static void every_version_and_spelling_is_read(void **state)
{
    (void)state;
    static const struct {
        int major;
        const char *dictionary;
        size_t data;
    } cases[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24},
        {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24},
        {1, "{\"shape\":(2,3,),\"descr\":\"<f2\",\"fortran_order\":False}", 12},
        {1, "{'descr': '<i8', 'fortran_order': False, 'shape': (), }", 8},
        {1, "{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size;
        unsigned char *bytes =
            make_image(cases[i].major, cases[i].dictionary, cases[i].data, &size);
        decoder_error error;
        npy *file;
        if (npy_parse(bytes, size, "N", &file, &error) != 0) {
            fail_msg("%s", error.message);
        }
        npy_close(file);
        free(bytes);
    }
}

#define REST ", 'fortran_order': False, 'shape': (2, 3), }"

static void hostile_headers_return_an_error(void **state)
{
    (void)state;
    static const struct {
        int major;
        const char *dictionary;
        size_t data;
        const char *field;
    } cases[] = {
        {3, "{'descr': '<f4'" REST, 24, "version"},
        {0, "{'descr': '<f4'" REST, 24, "version"},
        {1, "{'descr': '>f4'" REST, 24, "descr"},
        {1, "{'descr': '|O'" REST, 24, "descr"},
        {1, "{'descr': [('a', '<f4')]" REST, 24, "descr"},
        {1, "{'descr': '<f4\\'" REST, 24, "descr"},
        {1, "{'descr': '<f4'" REST, 23, "shape"},
        {1, "{'descr': '<f4'" REST, 25, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 24, "fortran_order"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (6), }", 24, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }", 24, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }", 24, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, }", 24, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': 6, }", 24, "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 0,
         "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 0,
         "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0), }", 0,
         "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6), }", 24,
         "shape"},
        {1, "{'descr': '<f4', 'fortran_order': False, }", 24, "shape"},
        {1, "{'fortran_order': False, 'shape': (2, 3), }", 24, "descr"},
        {1, "{'descr': '<f4', 'descr': '<f4'" REST, 24, "descr"},
        {1, "{'descr': '<f4', 'x': 1" REST, 24, "x"},
        {1, "{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3), }", 24, "header"},
        {1, "{'descr': '<f4'" REST " import os", 24, "header"},
        {1, "['descr']", 24, "header"},
        {1, "{", 24, "header"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size;
        unsigned char *bytes =
            make_image(cases[i].major, cases[i].dictionary, cases[i].data, &size);
        decoder_error error = {""};
        npy *file;
        assert_int_equal(npy_parse(bytes, size, "N", &file, &error), -1);
        assert_null(file);
        if (strncmp(error.message, "N: ", 3) != 0 || !strstr(error.message + 3, cases[i].field)) {
            fail_msg("%s: %s", cases[i].dictionary, error.message);
        }
        free(bytes);
    }
}

static void truncated_files_return_an_error(void **state)
{
    (void)state;
    size_t size;
    unsigned char *whole = make_image(1, "{'descr': '<f4'" REST, 24, &size);
    for (size_t length = 0; length < size; length++) {
        unsigned char *bytes = malloc(length + 1);
        memcpy(bytes, whole, length);
        decoder_error error = {""};
        npy *file;
        assert_int_equal(npy_parse(bytes, length, "N", &file, &error), -1);
        assert_non_null(strstr(error.message, "N: "));
        free(bytes);
    }
    free(whole);
}

static void folders_and_absent_files_return_an_error(void **state)
{
    decoder_error error = {""};
    npy *file;
    assert_int_equal(npy_open(*state, &file, &error), -1);
    assert_non_null(strstr(error.message, "not a regular file"));
    assert_int_equal(npy_open(scratch_path(*state, "absent"), &file, &error), -1);
    assert_non_null(strstr(error.message, "absent: No such file"));
    assert_int_equal(npy_open(scratch_write(*state, "empty", "", 0), &file, &error), -1);
    assert_non_null(strstr(error.message, "empty: magic"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_arrays_are_read_back, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test_setup_teardown(a_failed_write_leaves_nothing, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test(every_version_and_spelling_is_read),
        cmocka_unit_test(hostile_headers_return_an_error),
        cmocka_unit_test(truncated_files_return_an_error),
        cmocka_unit_test_setup_teardown(folders_and_absent_files_return_an_error, scratch_set_up,
                                        scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
