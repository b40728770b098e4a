/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors files and folders of shards: valid ones are read; ones with a false header or index
 * are rejected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoder/files/checkpoint.h"
#include "decoder/files/safetensors.h"
#include "scratch_folder.h"

/* A file image: the header padded to 8 bytes, then `data` bytes 0, 1, 2, ... The caller frees
 * it. */
static unsigned char *make_image(const char *header, size_t data, size_t *size)
{
    uint64_t length = (strlen(header) + 7) / 8 * 8;
    unsigned char *bytes = calloc(1, 8 + length + data + 1);
    memcpy(bytes, &length, 8);
    memset(bytes + 8, ' ', length);
    memcpy(bytes + 8, header, strlen(header));
    for (size_t i = 0; i < data; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    *size = 8 + length + data;
    return bytes;
}

#define TWO                                                                                        \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                       \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                           \
    "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}}"

static void tensors_are_found_by_name(void **state)
{
    (void)state;
    size_t size;
    unsigned char *bytes = make_image(TWO, 32, &size);
    safetensors *file;
    decoder_error error;
    const char *name;
    if (safetensors_parse(bytes, size, "S", &file, &error) != 0) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(safetensors_count(file), 2);
    const tensor_view *a = safetensors_at(file, 0, &name);
    assert_string_equal(name, "a");
    assert_ptr_equal(a, safetensors_find(file, "a"));
    assert_int_equal(a->dtype, TENSOR_BF16);
    assert_int_equal(((const unsigned char *)a->data)[0], 24);
    const tensor_view *b = safetensors_find(file, "b");
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->bytes, 24);
    assert_null(safetensors_find(file, "c"));
    assert_null(safetensors_find(file, "__metadata__"));
    gumbel_tensor matrix;
    assert_true(tensor_as_matrix(b, &matrix));
    assert_int_equal(matrix.rows, 2);
    assert_int_equal(matrix.dtype, GUMBEL_FLOAT32);
    safetensors_close(file);
    free(bytes);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void hostile_headers_return_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *field;
    } cases[] = {
        {"", 0, "line 1"},
        {"[]", 0, "line 1"},
        {"{}}", 0, "line 1"},
        {"{}", 8, "data"},
        {"{\"t\":1}", 0, "t: is not a JSON object"},
        {"{\"t\":{}}", 0, "t.dtype"},
        {T("\"Q4\"", "[4]", "[0,4]"), 4, "t.dtype"},
        {T("7", "[4]", "[0,4]"), 4, "t.dtype"},
        {T("\"U8\"", "4", "[0,4]"), 4, "t.shape"},
        {T("\"U8\"", "[-4]", "[0,4]"), 4, "t.shape"},
        {T("\"U8\"", "[4.0]", "[0,4]"), 4, "t.shape"},
        {T("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), 4, "t.shape"},
        {T("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, "t.shape"},
        {T("\"F64\"", "[4294967296,4294967296]", "[0,0]"), 0, "t.shape"},
        {T("\"F64\"", "[4294967296,4294967296,0]", "[0,0]"), 0, "t.shape"},
        {T("\"U8\"", "[99999999999999999999]", "[0,4]"), 4, "line 1"},
        {T("\"U8\"", "[4]", "[0]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[0,\"4\"]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[0,5]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[4,0]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[-4,0]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[3]", "[0,4]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[5]", "[0,4]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[9223372036854775803,9223372036854775807]"), 4, "t.data_offsets"},
        {T("\"U8\"", "[4]", "[1,5]"), 5, "t: data_offsets"},
        {T("\"U8\"", "[4]", "[0,4]"), 5, "data"},
        {"{\"t\\u0000x\":{}}", 0, "line 1"},
        {"{\"t\":{},\"t\":{}}", 0, "line 1"},
        {"{\"\\ud800\":{}}", 0, "line 1"},
        {"{\"a\\nb: ok\":1}", 0, "a?b: ok"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, "b: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]}}",
         7, "b.data_offsets"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size;
        unsigned char *bytes = make_image(cases[i].header, cases[i].data, &size);
        decoder_error error = {""};
        safetensors *file;
        assert_int_equal(safetensors_parse(bytes, size, "S", &file, &error), -1);
        assert_null(file);
        if (strncmp(error.message, "S: ", 3) != 0 || !strstr(error.message + 3, cases[i].field) ||
            strchr(error.message, '\n')) {
            fail_msg("%s: %s", cases[i].header, error.message);
        }
        free(bytes);
    }
}

static void false_header_lengths_return_an_error(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 1000000, UINT64_C(1) << 32, UINT64_MAX, UINT64_MAX - 7};
    size_t size;
    unsigned char *bytes = make_image(TWO, 32, &size);
    safetensors *file;
    decoder_error error;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(bytes, &lengths[i], 8);
        assert_int_equal(safetensors_parse(bytes, size, "S", &file, &error), -1);
    }
    assert_non_null(strstr(error.message, "S: header length"));
    free(bytes);
}

static void truncated_files_return_an_error(void **state)
{
    (void)state;
    size_t size;
    unsigned char *whole = make_image(TWO, 32, &size);
    for (size_t length = 0; length < size; length++) {
        unsigned char *bytes = malloc(length + 1);
        memcpy(bytes, whole, length);
        decoder_error error = {""};
        safetensors *file;
        assert_int_equal(safetensors_parse(bytes, length, "S", &file, &error), -1);
        assert_non_null(strstr(error.message, "S: "));
        free(bytes);
    }
    free(whole);
}

static void deep_nesting_returns_an_error(void **state)
{
    (void)state;
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH + 8);
    memset(header, '[', DEPTH);
    memcpy(header, "{\"a\":", 5);
    header[DEPTH] = '\0';
    size_t size;
    unsigned char *bytes = make_image(header, 0, &size);
    decoder_error error = {""};
    safetensors *file;
    assert_int_equal(safetensors_parse(bytes, size, "S", &file, &error), -1);
    assert_non_null(strstr(error.message, "depth"));
    free(bytes);
    free(header);
}

#define ONE(name, size)                                                                            \
    "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[0," size "]}}"

static void write_image(const char *folder, const char *name, const char *header, size_t data)
{
    size_t size;
    unsigned char *bytes = make_image(header, data, &size);
    scratch_write(folder, name, bytes, size);
    free(bytes);
}

static void shards_are_found_through_the_index(void **state)
{
    checkpoint *weights;
    decoder_error error;
    const char *path;
    write_image(*state, "m-1.safetensors", ONE("a", "4"), 4);
    write_image(*state, "m-2.safetensors", ONE("b", "8"), 8);
    scratch_write_text(*state, "model.safetensors.index.json",
                       "{\"metadata\":{\"total_size\":12},\"weight_map\":"
                       "{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}");
    if (checkpoint_open(*state, &weights, &error) != 0) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(checkpoint_find(weights, "a", &path)->bytes, 4);
    assert_non_null(strstr(path, "m-1.safetensors"));
    assert_int_equal(checkpoint_find(weights, "b", &path)->bytes, 8);
    assert_non_null(strstr(path, "m-2.safetensors"));
    assert_null(checkpoint_find(weights, "c", &path));
    assert_non_null(strstr(path, "index.json"));
    checkpoint_close(weights);
}

static void hostile_indexes_return_an_error(void **state)
{
    static const struct {
        const char *index, *field;
    } cases[] = {
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"a\":1}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"/etc/m-1.safetensors\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"..\\\\m-1.safetensors\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"m-1.bin\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"m-3.safetensors\"}}", "m-3.safetensors"},
        {"{\"weight_map\":{\"z\":\"m-1.safetensors\"}}", "weight_map.z"},
    };
    write_image(*state, "m-1.safetensors", ONE("a", "4"), 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        checkpoint *weights;
        decoder_error error = {""};
        scratch_write_text(*state, "model.safetensors.index.json", cases[i].index);
        assert_int_equal(checkpoint_open(*state, &weights, &error), -1);
        assert_null(weights);
        if (!strstr(error.message, cases[i].field)) {
            fail_msg("%s: %s", cases[i].index, error.message);
        }
    }
}

static void empty_folder_returns_an_error(void **state)
{
    checkpoint *weights;
    decoder_error error;
    assert_int_equal(checkpoint_open(*state, &weights, &error), -1);
    assert_non_null(strstr(error.message, "model.safetensors: is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(hostile_headers_return_an_error),
        cmocka_unit_test(false_header_lengths_return_an_error),
        cmocka_unit_test(truncated_files_return_an_error),
        cmocka_unit_test(deep_nesting_returns_an_error),
        cmocka_unit_test_setup_teardown(shards_are_found_through_the_index, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test_setup_teardown(hostile_indexes_return_an_error, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test_setup_teardown(empty_folder_returns_an_error, scratch_set_up,
                                        scratch_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
