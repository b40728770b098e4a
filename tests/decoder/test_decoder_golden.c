/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the bundled models with golden values, which the transformers library computed in
 * float32 (tests/models/README.md).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "decoder/generate.h"
#include "decoder/files/safetensors.h"

#define ROWS       8 /* contexts */
#define ROWS_RUN   (TEST_SANITIZED ? 1 : ROWS)
#define LENGTH     256 /* tokens of a context */
#define PLACES     8   /* positions with a recorded hidden state, in each context */
#define LOGIT_ROWS 16
/* Both sides sum in float32, in different orders. Measured: hidden states 5.3e-6 where the largest
 * is 7.6, logits 1.3e-5, losses 4e-7. */
#define HIDDEN_TOLERANCE 1e-5 /* of the largest value */
#define LOGIT_TOLERANCE  1e-3
#define NLL_TOLERANCE    1e-4

typedef struct golden {
    safetensors *tensors;
    json_t *document;
    gumbel_device *device;
} golden;

static int set_up(void **state)
{
    static golden g;
    decoder_error error;
    if (safetensors_open(MODELS_FOLDER "/golden.safetensors", &g.tensors, &error) != 0) {
        puts(error.message);
        return -1;
    }
    g.document = json_load_file(MODELS_FOLDER "/golden.json", 0, NULL);
    *state = &g;
    return g.document && gumbel_open(NULL, &g.device, NULL) == GUMBEL_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    golden *g = *state;
    safetensors_close(g->tensors);
    json_decref(g->document);
    gumbel_close(g->device);
    return 0;
}

static decoder *open_model(const char *name)
{
    char folder[512];
    decoder *d;
    decoder_error error;
    snprintf(folder, sizeof folder, MODELS_FOLDER "/kjv-%s", name);
    if (decoder_open(folder, 2, &d, &error) != 0) {
        fail_msg("%s", error.message);
    }
    return d;
}

static const void *tensor_data(const golden *g, const char *name, tensor_dtype dtype)
{
    const tensor_view *view = safetensors_find(g->tensors, name);
    assert_non_null(view);
    assert_int_equal(view->dtype, dtype);
    return view->data;
}

/* Hidden states of all tokens of context `row`, [LENGTH, D]; the caller frees them. */
static float *run_context(decoder *d, const int32_t *context)
{
    decoder_sequence *sequence;
    float *hidden = malloc(sizeof *hidden * LENGTH * (size_t)decoder_describe(d)->hidden_size);
    assert_int_equal(decoder_sequence_new(d, LENGTH, &sequence, NULL), 0);
    assert_int_equal(decoder_feed(d, sequence, context, LENGTH, 0, hidden, NULL), 0);
    decoder_sequence_free(sequence);
    return hidden;
}

/* Computes the logits of one hidden state in double, out[V]; several independent sums make it
 * faster. */
static void logits_of(const decoder *d, const float *hidden, double *out)
{
    enum { SUMS = 8 };
    gumbel_tensor head = decoder_head(d);
    assert_int_equal(head.dtype, GUMBEL_BFLOAT16);
    assert_int_equal(head.cols % SUMS, 0);
    const uint16_t *weight = head.data;
    for (int64_t token = 0; token < head.rows; token++) {
        double sums[SUMS] = {0};
        out[token] = 0;
        for (int64_t i = 0; i < head.cols; i += SUMS) {
            for (int k = 0; k < SUMS; k++) {
                uint32_t bits = (uint32_t)*weight++ << 16;
                float value;
                memcpy(&value, &bits, sizeof value);
                sums[k] += (double)value * hidden[i + k];
            }
        }
        for (int k = 0; k < SUMS; k++) {
            out[token] += sums[k];
        }
    }
}

static double largest_difference(const float *got, const float *want, int64_t count, double *scale)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        *scale = fmax(*scale, fabs((double)want[i]));
    }
    return worst;
}

static void check_hidden(const golden *g, const char *name)
{
    char tensor[32];
    snprintf(tensor, sizeof tensor, "%s.hidden", name);
    const float *want = tensor_data(g, tensor, TENSOR_F32);
    const int32_t *context = tensor_data(g, "context", TENSOR_I32);
    const int32_t *positions = tensor_data(g, "positions", TENSOR_I32);
    decoder *d = open_model(name);
    int64_t size = decoder_describe(d)->hidden_size;
    double worst = 0, scale = 0;
    for (int row = 0; row < ROWS_RUN; row++) {
        float *hidden = run_context(d, context + row * LENGTH);
        for (int p = 0; p < PLACES; p++) {
            double error = largest_difference(hidden + positions[p] * size,
                                              want + (row * PLACES + p) * size, size, &scale);
            worst = fmax(worst, error);
        }
        free(hidden);
    }
    print_message("%s: largest error %.2e, largest value %.3g\n", tensor, worst, scale);
    assert_true(worst <= HIDDEN_TOLERANCE * scale);
    decoder_close(d);
}

static void hidden_states_of_target_match(void **state) { check_hidden(*state, "target"); }

static void hidden_states_of_draft_match(void **state) { check_hidden(*state, "draft"); }

static void logits_of_target_match(void **state)
{
    const float *want = tensor_data(*state, "target.logits", TENSOR_F32);
    const int32_t *context = tensor_data(*state, "context", TENSOR_I32);
    const int32_t *positions = tensor_data(*state, "positions", TENSOR_I32);
    decoder *d = open_model("target");
    const decoder_info *info = decoder_describe(d);
    double *logits = malloc(sizeof *logits * (size_t)info->vocab_size);
    double worst = 0;
    for (int row = 0; row < LOGIT_ROWS / PLACES; row++) {
        float *hidden = run_context(d, context + row * LENGTH);
        for (int p = 0; p < PLACES; p++) {
            logits_of(d, hidden + (int64_t)positions[p] * info->hidden_size, logits);
            for (int32_t token = 0; token < info->vocab_size; token++) {
                worst = fmax(worst, fabs(logits[token] - *want++));
            }
        }
        free(hidden);
    }
    print_message("target.logits: largest error %.2e\n", worst);
    assert_true(worst <= LOGIT_TOLERANCE);
    free(logits);
    decoder_close(d);
}

/* The mean of -log p(next token) over a context. */
static double loss_of(decoder *d, const int32_t *context)
{
    int32_t vocab = decoder_describe(d)->vocab_size;
    int64_t size = decoder_describe(d)->hidden_size;
    float *hidden = run_context(d, context);
    double *logits = malloc(sizeof *logits * (size_t)vocab);
    double loss = 0;
    for (int i = 0; i + 1 < LENGTH; i++) {
        logits_of(d, hidden + i * size, logits);
        double top = -INFINITY, mass = 0;
        for (int32_t token = 0; token < vocab; token++) {
            top = fmax(top, logits[token]);
        }
        for (int32_t token = 0; token < vocab; token++) {
            mass += exp(logits[token] - top);
        }
        loss += log(mass) + top - logits[context[i + 1]];
    }
    free(logits);
    free(hidden);
    return loss / (LENGTH - 1);
}

static void losses_match(void **state)
{
    const golden *g = *state;
    const char *const names[] = {"target", "draft"};
    const int32_t *context = tensor_data(g, "context", TENSOR_I32);
    for (int n = TEST_SANITIZED; n < 2; n++) {
        decoder *d = open_model(names[n]);
        const json_t *want = json_object_get(json_object_get(g->document, names[n]), "nll_per_row");
        double worst = 0;
        for (int row = 0; row < ROWS_RUN; row++) {
            double error = loss_of(d, context + row * LENGTH) -
                           json_real_value(json_array_get(want, (size_t)row));
            worst = fmax(worst, fabs(error));
        }
        print_message("%s: largest error of a row's loss %.2e\n", names[n], worst);
        assert_true(worst <= NLL_TOLERANCE);
        decoder_close(d);
    }
}

static generate_next check_token(void *context, const generate_token *token)
{
    const json_t *want = context;
    size_t drawn = (size_t)token->position - json_array_size(json_object_get(want, "prompt_ids"));
    const json_t *id = json_array_get(json_object_get(want, "greedy_ids"), drawn);
    assert_int_equal(token->id, json_integer_value(id));
    return GENERATE_CONTINUE;
}

static void check_greedy(const golden *g, decoder *d, json_t *want)
{
    const char *prompt = json_string_value(json_object_get(want, "prompt"));
    const json_t *prompt_ids = json_object_get(want, "prompt_ids");
    const json_t *greedy_ids = json_object_get(want, "greedy_ids");
    token_list ids = {0}, drawn = {0};
    token_text text;
    decoder_error error = {""};
    assert_int_equal(
        tokenizer_encode(decoder_tokenizer(d), prompt, strlen(prompt), true, &ids, &error), 0);
    assert_int_equal(ids.count, json_array_size(prompt_ids));
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(ids.ids[i], json_integer_value(json_array_get(prompt_ids, i)));
    }
    generate_times times;
    generate_options options = {.prompt = ids.ids,
                                .prompt_count = (int32_t)ids.count,
                                .max_tokens = (int32_t)json_array_size(greedy_ids),
                                .num_samples = 3,
                                .on_token = check_token,
                                .context = want};
    if (generate(d, g->device, &options, &times, &error) != 0) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(times.drawn, 3 * json_array_size(greedy_ids));
    for (size_t i = 0; i < json_array_size(greedy_ids); i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(greedy_ids, i));
        token_list_append(&drawn, &id, 1);
    }
    tokenizer_decode(decoder_tokenizer(d), drawn.ids, drawn.count, true, &text);
    assert_string_equal(text.bytes, json_string_value(json_object_get(want, "text")));
    free(text.bytes);
    token_list_free(&ids);
    token_list_free(&drawn);
}

static void greedy_continuations_match(void **state)
{
    const golden *g = *state;
    const char *const names[] = {"target", "draft"};
    for (int n = 0; n < 2; n++) {
        decoder *d = open_model(names[n]);
        const json_t *cases = json_object_get(json_object_get(g->document, names[n]), "greedy");
        assert_true(json_array_size(cases) > 0);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            check_greedy(g, d, json_array_get(cases, i));
        }
        decoder_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_of_target_match),
        cmocka_unit_test(hidden_states_of_draft_match),
        cmocka_unit_test(logits_of_target_match),
        cmocka_unit_test(losses_match),
        cmocka_unit_test(greedy_continuations_match),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
