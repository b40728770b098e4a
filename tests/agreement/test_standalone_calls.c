/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-alone calls of docs/standalone_calls.md, for engines that compose their own sampler:
 * argmax, top-k, masks, penalties and temperature in place, softmax, and softmax after truncation.
 * Results are compared with plain loops, on every instruction set.
 */
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* B * V is large enough for several threads. */
enum { B = 5, V = 12100, K = 50, LIST = 128 };

/* A batch of logits and its memory. */
typedef struct batch {
    gumbel_logits logits;
    gumbel_dtype dtype;
    void *data;
} batch;

/* Fills in normally distributed logits far from 0; some are equal, some are -inf. */
static batch make_batch(gumbel_dtype dtype, int64_t stride, uint64_t seed)
{
    batch generated = {.dtype = dtype,
                       .data = make_zeroed((size_t)(B * stride), dtype_size(dtype))};
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < stride; i++)
            dtype_store(generated.data, dtype, b * stride + i, 3 * random_normal(&seed) - 40);
    for (int64_t b = 0; b < B; b++)
        dtype_store(generated.data, dtype, b * stride + 7,
                    dtype_load(generated.data, dtype, b * stride + 9));
    generated.logits = (gumbel_logits){.struct_size = sizeof generated.logits,
                                       .logits = tensor_of(generated.data, dtype, B, V, stride)};
    return generated;
}

static float logit_of(const batch *from, int64_t b, int64_t i)
{
    return dtype_load(from->data, from->dtype, b * from->logits.logits.stride + i);
}

static void argmax_matches_a_loop(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const float greedy = 0;
    for (int k = 0; k < 3; k++) {
        batch generated = make_batch(dtypes[k], V + k, 3);
        outcome *found = outcome_make(B, 1);
        gumbel_sampling how = {.struct_size = sizeof how, .temperature = {&greedy, GUMBEL_SAME}};
        assert_int_equal(draw_logits(*state, &generated.logits, &how, found), GUMBEL_OK);
        for (int64_t b = 0; b < B; b++) {
            int32_t best = 0;
            for (int32_t i = 1; i < V; i++)
                best = logit_of(&generated, b, i) > logit_of(&generated, b, best) ? i : best;
            assert_int_equal(found->tokens[b], best);
            assert_true(found->scores[b] == logit_of(&generated, b, best));
        }
        outcome_free(found);
        free(generated.data);
    }
}

/* ----------------------------------------------------------------------------------- top-k ---- */

typedef struct selection {
    int32_t tokens[B], ids[B * LIST];
    float values[B * LIST];
} selection;

/* Calls top-k once, from logits or from a head; the other is NULL. */
static void select_top(gumbel_device *device, const gumbel_head *head, const gumbel_logits *logits,
                       const gumbel_sampling *how, int32_t k, selection *into)
{
    gumbel_output out = {.struct_size = sizeof out,
                         .tokens = into->tokens,
                         .top_ids = into->ids,
                         .top_logits = into->values,
                         .num_top = k};
    size_t bytes;
    void *workspace = call_workspace(device, head, logits, how, &out, &bytes);
    gumbel_error error;
    memset(into, 0xA7, sizeof *into);
    assert_int_equal(
        head ? gumbel_sample(device, NULL, head, how, &out, workspace, bytes, &error)
             : gumbel_sample_logits(device, NULL, logits, how, &out, workspace, bytes, &error),
        GUMBEL_OK);
    free(workspace);
}

/* Compares with the k largest of n values, lower ids first among equals, found by k linear
 * searches. */
static void assert_selected(const float *values, int32_t n, int32_t k, const int32_t *ids,
                            const float *found)
{
    float last = INFINITY;
    int32_t last_id = -1;
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            int below = values[i] < last || (values[i] == last && i > last_id);
            if (below && values[i] > -INFINITY && (best < 0 || values[i] > values[best]))
                best = i;
        }
        assert_int_equal(ids[j], best);
        last = best < 0 ? -INFINITY : values[best];
        assert_true(found[j] == last);
        last_id = best < 0 ? n : best;
    }
}

static void top_k_matches_a_loop(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const float greedy = 0;
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {&greedy, GUMBEL_SAME}};
    selection *found = make_zeroed(1, sizeof *found);
    float *row = make_zeroed(V, sizeof *row);
    for (int c = 0; c < 3; c++) {
        static const int32_t ks[] = {1, K, LIST};
        batch generated = make_batch(dtypes[c], V + 3 * c, 11);
        select_top(*state, NULL, &generated.logits, &how, ks[c], found);
        for (int64_t b = 0; b < B; b++) {
            assert_int_equal(found->tokens[b], found->ids[b * ks[c]]);
            for (int64_t i = 0; i < V; i++)
                row[i] = logit_of(&generated, b, i);
            assert_selected(row, V, ks[c], found->ids + b * ks[c], found->values + b * ks[c]);
        }
        free(generated.data);
    }
    free(row);
    free(found);
}

/* Rows with fewer tokens than num_top, without tokens, and with a NaN. */
static void top_k_of_short_empty_and_nan_rows(void **state)
{
    float values[3][4] = {
        {2, -INFINITY, 5, 5}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {1, NAN, 2, 3}};
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, 3, 4, 0)};
    selection *found = make_zeroed(1, sizeof *found);
    static const int32_t ids[] = {2, 3, 0, -1, -1};
    static const float wanted[] = {5, 5, 2, -INFINITY, -INFINITY};
    select_top(*state, NULL, &logits, NULL, 5, found);
    for (int j = 0; j < 15; j++) {
        assert_int_equal(found->ids[j], j < 5 ? ids[j] : -1);
        assert_true(j < 5 ? found->values[j] == wanted[j] : isnan(found->values[j]));
    }
    free(found);
}

/* From hidden states, the listed values are the raw logits of the product, before any transform. */
static void top_k_from_hidden_states_matches_logits(void **state)
{
    problem_plan plan = {.batch = B, .vocab = 700, .hidden_size = 65, .seed = 5};
    plan.weight_dtype = GUMBEL_BFLOAT16;
    plan.hidden_dtype = GUMBEL_FLOAT32;
    plan.bias_dtype = GUMBEL_FLOAT32;
    problem *generated = problem_make(&plan);
    float *logits = product_logits(*state, &generated->head), temperature = 0.5f;
    selection *found = make_zeroed(1, sizeof *found);
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {&temperature, GUMBEL_SAME}};
    select_top(*state, &generated->head, NULL, &how, K, found);
    for (int64_t b = 0; b < B; b++)
        assert_selected(logits + b * plan.vocab, (int32_t)plan.vocab, K, found->ids + b * K,
                        found->values + b * K);
    free(found);
    free(logits);
    problem_free(generated);
}

static void top_logits_require_ids(void **state)
{
    batch generated = make_batch(GUMBEL_FLOAT32, V, 1);
    int32_t tokens[B];
    float values[B * K];
    gumbel_output out = {
        .struct_size = sizeof out, .tokens = tokens, .top_logits = values, .num_top = K};
    gumbel_error error = {"", ""};
    assert_int_equal(
        gumbel_sample_logits(*state, NULL, &generated.logits, NULL, &out, NULL, 0, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output.top_logits");
    free(generated.data);
}

/* -------------------------------------------------------------------------------- in place ---- */

/* gumbel_process_logits() or gumbel_softmax(). */
typedef gumbel_status (*row_call)(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                  const gumbel_sampling *sampling, float *out, int64_t stride,
                                  void *workspace, size_t bytes, gumbel_error *error);

static gumbel_status make_rows(gumbel_device *device, row_call call, const gumbel_logits *logits,
                               const gumbel_sampling *how, float *out, int64_t stride,
                               gumbel_error *error)
{
    size_t bytes;
    void *workspace = call_workspace(device, NULL, logits, how, NULL, &bytes);
    gumbel_status status = call(device, NULL, logits, how, out, stride, workspace, bytes, error);
    free(workspace);
    return status;
}

/* The requests: each transform alone, and all together. */
typedef struct row_request {
    float temperature, repetition, frequency, top_p;
    int32_t top_k;
    int32_t mask[(V + 31) / 32];
    int64_t offsets[B + 1];
    int32_t ids[2 * B];
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_sampling how;
} row_request;

enum { KINDS = 7 };

static void make_request(int kind, row_request *a)
{
    int all = kind == KINDS - 1;
    uint64_t seed = 17;
    *a = (row_request){.temperature = 0.7f, .repetition = 1.3f, .frequency = 0.25f, .top_p = 0.8f};
    a->top_k = 40;
    for (size_t i = 0; i < sizeof a->mask / sizeof *a->mask; i++)
        a->mask[i] = (int32_t)random_bits(&seed);
    for (int b = 0; b <= B; b++)
        a->offsets[b] = 2 * b;
    for (int i = 0; i < 2 * B; i++)
        a->ids[i] = (int32_t)random_below(&seed, V);
    a->transforms.struct_size = sizeof a->transforms;
    a->truncation.struct_size = sizeof a->truncation;
    a->how = (gumbel_sampling){
        .struct_size = sizeof a->how, .transforms = &a->transforms, .truncation = &a->truncation};
    if (kind == 1 || all)
        a->how.temperature = (gumbel_row_f32){&a->temperature, GUMBEL_SAME};
    if (kind == 2 || all)
        a->transforms.mask = (gumbel_row_i32){a->mask, GUMBEL_SAME};
    if (kind == 3 || all)
        a->transforms.banned = (gumbel_token_lists){.offsets = a->offsets, .ids = a->ids};
    if (kind == 4 || all) {
        a->transforms.repetition = (gumbel_row_f32){&a->repetition, GUMBEL_SAME};
        a->transforms.frequency = (gumbel_row_f32){&a->frequency, GUMBEL_SAME};
        a->transforms.output_tokens = (gumbel_token_lists){.offsets = a->offsets, .ids = a->ids};
    }
    if (kind == 5 || all) {
        a->truncation.top_k = (gumbel_row_i32){&a->top_k, GUMBEL_SAME};
        a->truncation.top_p = (gumbel_row_f32){&a->top_p, GUMBEL_SAME};
    }
}

static void processing_in_place_matches_a_copy(void **state)
{
    static const row_call calls[] = {gumbel_process_logits, gumbel_softmax};
    static const int64_t strides[] = {V, V + 5};
    for (int i = 0; i < 2 * 2 * KINDS; i++) {
        row_call call = calls[i % 2];
        int64_t stride = strides[i / 2 % 2];
        batch generated = make_batch(GUMBEL_FLOAT32, stride, 23),
              apart = make_batch(GUMBEL_FLOAT32, stride, 23);
        row_request *a = make_zeroed(1, sizeof *a);
        make_request(i / 4, a);
        float *out = make_zeroed((size_t)(B * stride), sizeof *out);
        memcpy(out, apart.data, (size_t)(B * stride) * sizeof *out);
        gumbel_error error;
        assert_int_equal(make_rows(*state, call, &apart.logits, &a->how, out, stride, &error),
                         GUMBEL_OK);
        assert_int_equal(
            make_rows(*state, call, &generated.logits, &a->how, generated.data, stride, &error),
            GUMBEL_OK);
        assert_memory_equal(generated.data, out, (size_t)(B * stride) * sizeof *out);
        free(out);
        free(a);
        free(generated.data);
        free(apart.data);
    }
}

static void in_place_errors_name_the_field(void **state)
{
    static const row_call calls[] = {gumbel_process_logits, gumbel_softmax};
    static const char *const names[] = {"processed", "probabilities"};
    for (int i = 0; i < 2; i++) {
        batch narrow = make_batch(GUMBEL_BFLOAT16, 2 * V, 1);
        batch wide = make_batch(GUMBEL_FLOAT32, V + 2, 1);
        gumbel_error error = {"", ""};
        assert_int_equal(make_rows(*state, calls[i], &narrow.logits, NULL, narrow.data, V, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, names[i]);
        error.field[0] = 0;
        assert_int_equal(make_rows(*state, calls[i], &wide.logits, NULL, wide.data, V, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, names[i]);
        free(narrow.data);
        free(wide.data);
    }
}

/* --------------------------------------------------------------------------------- softmax ---- */

/* Compares a row of probabilities with the softmax in double of the processed logits. */
static void assert_softmax(const float *z, const float *found, int64_t count)
{
    double largest = -INFINITY, mass = 0, total = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, (double)z[i]);
    for (int64_t i = 0; i < count; i++)
        mass += exp((double)z[i] - largest);
    for (int64_t i = 0; i < count; i++) {
        double x = (double)z[i] - largest, p = exp(x) / mass;
        if (x < -87.001)
            assert_true(found[i] == 0);
        else if (x > -86.999)
            assert_true(fabs((double)found[i] - p) <= 0x1p-24 * (5 - x) * p + 0x1p-149);
        total += (double)found[i];
    }
    assert_true(fabs(total - 1) < 1e-6);
}

/* Every kind of request and dtype, logits near 0 and far from it; results equal the reference's
 * bits. */
static void softmax_matches_double(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    gumbel_device *reference = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    size_t size = (size_t)B * V;
    float *z = make_zeroed(size, sizeof *z), *found = make_zeroed(size, sizeof *found);
    float *plain = make_zeroed(size, sizeof *plain);
    for (int i = 0; i < 3 * KINDS; i++) {
        batch generated = make_batch(dtypes[i % 3], V + i % 3, 31);
        gumbel_error error;
        row_request *a = make_zeroed(1, sizeof *a);
        make_request(i / 3, a);
        generated.logits.scale = i % 2 ? 30 : 0;
        assert_int_equal(request_process(*state, &generated.logits, &a->how, z), GUMBEL_OK);
        assert_int_equal(
            make_rows(*state, gumbel_softmax, &generated.logits, &a->how, found, 0, &error),
            GUMBEL_OK);
        assert_int_equal(
            make_rows(reference, gumbel_softmax, &generated.logits, &a->how, plain, 0, &error),
            GUMBEL_OK);
        assert_memory_equal(found, plain, size * sizeof *found);
        for (int64_t b = 0; b < B; b++)
            assert_softmax(z + b * V, found + b * V, V);
        free(a);
        free(generated.data);
    }
    free(plain);
    free(found);
    free(z);
    gumbel_close(reference);
}

/* A row alone has the result that it has in the batch; columns past vocab_size are not written. */
static void softmax_of_single_rows_matches_the_batch(void **state)
{
    batch generated = make_batch(GUMBEL_FLOAT32, V, 41);
    float *whole = make_zeroed((size_t)B * V, sizeof *whole),
          *alone = make_zeroed(V, sizeof *alone);
    gumbel_error error;
    generated.logits.vocab_size = V - 100;
    assert_int_equal(make_rows(*state, gumbel_softmax, &generated.logits, NULL, whole, 0, &error),
                     GUMBEL_OK);
    for (int64_t b = 0; b < B; b++) {
        gumbel_logits row = generated.logits;
        row.logits.data = (float *)generated.data + b * V;
        row.logits.rows = 1;
        assert_int_equal(make_rows(*state, gumbel_softmax, &row, NULL, alone, 0, &error),
                         GUMBEL_OK);
        assert_memory_equal(alone, whole + b * V, V * sizeof *alone);
        for (int64_t i = V - 100; i < V; i++)
            assert_true(alone[i] == 0);
    }
    free(alone);
    free(whole);
    free(generated.data);
}

/* Several threads share a row if there are more threads than rows. */
static void softmax_of_a_large_row_matches_double(void **state)
{
    enum { LARGE = 60123 };
    gumbel_device *reference = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    float *values = make_zeroed(LARGE, sizeof *values), *found = make_zeroed(LARGE, sizeof *found);
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, 1, LARGE, 0)};
    uint64_t seed = 47;
    gumbel_error error;
    for (int i = 0; i < LARGE; i++)
        values[i] = 3 * random_normal(&seed) + 1000;
    assert_int_equal(make_rows(*state, gumbel_softmax, &logits, NULL, found, 0, &error), GUMBEL_OK);
    assert_softmax(values, found, LARGE);
    assert_int_equal(make_rows(reference, gumbel_softmax, &logits, NULL, values, 0, &error),
                     GUMBEL_OK);
    assert_memory_equal(found, values, LARGE * sizeof *found);
    free(values);
    free(found);
    gumbel_close(reference);
}

static void softmax_of_faulty_rows(void **state)
{
    float values[5][3] = {{NAN, 1, 2},
                          {0, INFINITY, 0},
                          {-INFINITY, -INFINITY, -INFINITY},
                          {-3e38f, 5, -INFINITY},
                          {1e30f, 1e30f, 0}};
    float found[5][3];
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, 5, 3, 0)};
    gumbel_error error;
    assert_int_equal(make_rows(*state, gumbel_softmax, &logits, NULL, found[0], 0, &error),
                     GUMBEL_OK);
    for (int i = 0; i < 9; i++)
        assert_true(isnan(found[i / 3][i % 3]));
    assert_true(found[3][0] == 0 && found[3][1] == 1 && found[3][2] == 0);
    assert_true(found[4][0] == found[4][1] && found[4][2] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argmax_matches_a_loop),
        cmocka_unit_test(top_k_matches_a_loop),
        cmocka_unit_test(top_k_of_short_empty_and_nan_rows),
        cmocka_unit_test(top_k_from_hidden_states_matches_logits),
        cmocka_unit_test(top_logits_require_ids),
        cmocka_unit_test(processing_in_place_matches_a_copy),
        cmocka_unit_test(in_place_errors_name_the_field),
        cmocka_unit_test(softmax_matches_double),
        cmocka_unit_test(softmax_of_single_rows_matches_the_batch),
        cmocka_unit_test(softmax_of_a_large_row_matches_double),
        cmocka_unit_test(softmax_of_faulty_rows),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
