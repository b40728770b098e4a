/* SPDX-License-Identifier: Apache-2.0
 *
 * Synthetic models of both families against a reference in double; tokens fed one
 * by one or in chunks give equal bits; incomplete folders are rejected.
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

#include "decoder/files/config.h"
#include "decoder/decoder.h"
#include "model_folder.h"
#include "scratch_folder.h"

#define COUNT 90 /* more tokens than the trunk processes in one pass */
#define LLAMA3                                                                                     \
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,"               \
    "\"high_freq_factor\":4,\"original_max_position_embeddings\":64},\"rope_theta\":100,"

static const folder_options llama = {.family = "llama", .dtype = TENSOR_BF16, .config = LLAMA3};
static const folder_options qwen = {.family = "qwen3", .dtype = TENSOR_BF16, .tied = true};

static decoder *open_folder(const char *folder, int32_t threads)
{
    decoder *d;
    decoder_error error;
    if (decoder_open(folder, threads, &d, &error) != 0) {
        fail_msg("%s", error.message);
    }
    return d;
}

static void make_tokens(int32_t tokens[COUNT])
{
    for (int i = 0; i < COUNT; i++) {
        tokens[i] = i * 7919 % FOLDER_VOCAB;
    }
}

/* Computes the hidden states of COUNT tokens fed at once. */
static void run_all(decoder *d, float hidden[COUNT][FOLDER_HIDDEN])
{
    int32_t tokens[COUNT];
    decoder_sequence *sequence;
    make_tokens(tokens);
    assert_int_equal(decoder_sequence_new(d, COUNT, &sequence, NULL), 0);
    assert_int_equal(decoder_feed(d, sequence, tokens, COUNT, 0, hidden[0], NULL), 0);
    assert_int_equal(decoder_sequence_length(sequence), COUNT);
    decoder_sequence_free(sequence);
}

static void run_folder(const char *folder, const folder_options *o, int32_t threads,
                       float hidden[COUNT][FOLDER_HIDDEN])
{
    folder_write(folder, o);
    decoder *d = open_folder(folder, threads);
    run_all(d, hidden);
    decoder_close(d);
}

static void check_reference(const char *folder, const folder_options *o, const rope_config *rope)
{
    static float hidden[COUNT][FOLDER_HIDDEN];
    static double want[COUNT][FOLDER_HIDDEN];
    int32_t tokens[COUNT];
    float frequencies[FOLDER_HEAD_DIM / 2];
    make_tokens(tokens);
    run_folder(folder, o, 2, hidden);
    rope_frequencies(rope, FOLDER_HEAD_DIM, frequencies);
    folder_reference(strcmp(o->family, "qwen3") == 0, frequencies, tokens, COUNT, want[0]);
    double worst = 0;
    for (int row = 0; row < COUNT; row++) {
        for (int i = 0; i < FOLDER_HIDDEN; i++) {
            worst = fmax(worst, fabs(hidden[row][i] - want[row][i]));
        }
    }
    print_message("%s: largest error %.2e\n", o->family, worst);
    assert_true(worst < 1e-4);
}

static void hidden_states_match_the_reference(void **state)
{
    rope_config rope = {.theta = 10000};
    check_reference(*state, &qwen, &rope);
    rope = (rope_config){100, true, 4, 1, 4, 64};
    check_reference(*state, &llama, &rope);
}

/* Bits are equal because the weights are exact in every dtype and the order of sums is fixed. */
static void dtypes_shards_and_threads_give_the_same_bits(void **state)
{
    static float first[COUNT][FOLDER_HIDDEN], other[COUNT][FOLDER_HIDDEN];
    run_folder(*state, &llama, 1, first);
    folder_options o = llama;
    o.dtype = TENSOR_F32;
    run_folder(*state, &o, 2, other);
    assert_memory_equal(first, other, sizeof first);
    o.dtype = TENSOR_F16;
    run_folder(*state, &o, 3, other);
    assert_memory_equal(first, other, sizeof first);
    o.shards = 3;
    run_folder(*state, &o, 1, other);
    assert_memory_equal(first, other, sizeof first);
}

static void every_way_to_feed_gives_the_same_bits(void **state)
{
    static float first[COUNT][FOLDER_HIDDEN], other[COUNT][FOLDER_HIDDEN], beside[2][FOLDER_HIDDEN];
    int32_t tokens[COUNT];
    decoder_sequence *a, *b;
    make_tokens(tokens);
    folder_write(*state, &qwen);
    decoder *d = open_folder(*state, 2);
    run_all(d, first);
    assert_int_equal(decoder_sequence_new(d, COUNT, &a, NULL), 0);
    assert_int_equal(decoder_sequence_new(d, FOLDER_POSITIONS, &b, NULL), 0);
    /* In two chunks; hidden states of the last tokens alone. */
    assert_int_equal(decoder_feed(d, a, tokens, 20, 20, NULL, NULL), 0);
    assert_int_equal(decoder_feed(d, a, tokens + 20, COUNT - 20, COUNT - 25, other[0], NULL), 0);
    assert_memory_equal(other[0], first[COUNT - 5], 5 * sizeof *first);
    /* One by one, beside another sequence at another position. */
    decoder_sequence_truncate(a, 0);
    assert_int_equal(decoder_feed(d, b, tokens, 30, 30, NULL, NULL), 0);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(decoder_step(d, (decoder_sequence *[]){b, a},
                                      (int32_t[]){tokens[i] / 2, tokens[i]}, 2, beside[0], NULL),
                         0);
        assert_memory_equal(beside[1], first[i], sizeof *first);
    }
    /* A copy continues at the position of its source. */
    decoder_sequence_truncate(a, 40);
    assert_int_equal(decoder_sequence_copy(b, a, NULL), 0);
    assert_int_equal(decoder_sequence_length(b), 40);
    decoder_sequence_truncate(a, 0);
    assert_int_equal(decoder_feed(d, b, tokens + 40, COUNT - 40, 0, other[0], NULL), 0);
    assert_memory_equal(other[0], first[40], (COUNT - 40) * sizeof *first);
    decoder_sequence_free(a);
    decoder_sequence_free(b);
    decoder_close(d);
}

/* A node of a tree has the hidden state of its path fed alone, and an accepted path continues as if
 * it had been fed alone. */
static void tree_nodes_match_their_paths(void **state)
{
    enum { BEFORE = 7, NODES = 90, BEHIND = 3 };
    static float tree[NODES][FOLDER_HIDDEN], path[NODES + BEHIND][FOLDER_HIDDEN];
    static float kept[BEHIND][FOLDER_HIDDEN];
    int32_t tokens[COUNT], node_tokens[NODES], parents[NODES] = {0}, nodes[NODES];
    int32_t on_path[NODES + BEHIND];
    decoder_sequence *a, *b;
    make_tokens(tokens);
    folder_write(*state, &qwen);
    decoder *d = open_folder(*state, 2);
    for (int32_t i = 0; i < NODES; i++) {
        node_tokens[i] = (i * 37 + 5) % FOLDER_VOCAB;
        parents[i] = i > 0 ? (i * 7 % 3 ? i - 1 : i / 2) : 0;
    }
    assert_int_equal(decoder_sequence_new(d, FOLDER_POSITIONS, &a, NULL), 0);
    assert_int_equal(decoder_sequence_new(d, FOLDER_POSITIONS, &b, NULL), 0);
    assert_int_equal(decoder_feed(d, b, tokens, BEFORE, BEFORE, NULL, NULL), 0);
    for (int32_t last = NODES - 1; last >= 0; last -= 11) {
        int32_t length = 0;
        for (int32_t i = last; i > 0; i = parents[i]) {
            length++;
        }
        for (int32_t i = last, at = length; at >= 0; i = parents[i]) {
            nodes[at] = i;
            on_path[at--] = node_tokens[i];
        }
        memcpy(on_path + length + 1, tokens + BEFORE, BEHIND * sizeof *tokens);
        decoder_sequence_truncate(a, 0);
        assert_int_equal(decoder_feed(d, a, tokens, BEFORE, BEFORE, NULL, NULL), 0);
        assert_int_equal(decoder_feed(d, a, on_path, length + 1 + BEHIND, 0, path[0], NULL), 0);
        decoder_sequence_truncate(b, BEFORE);
        assert_int_equal(decoder_feed_tree(d, b, node_tokens, parents, NODES, tree[0], NULL), 0);
        for (int32_t i = 0; i <= length; i++) {
            assert_memory_equal(tree[nodes[i]], path[i], sizeof *tree);
        }
        decoder_sequence_keep(b, BEFORE, nodes, length + 1);
        assert_int_equal(decoder_sequence_length(b), BEFORE + length + 1);
        assert_int_equal(decoder_feed(d, b, tokens + BEFORE, BEHIND, 0, kept[0], NULL), 0);
        assert_memory_equal(kept, path[length + 1], sizeof kept);
    }
    decoder_sequence_free(a);
    decoder_sequence_free(b);
    decoder_close(d);
}

static void invalid_calls_change_nothing(void **state)
{
    static float hidden[COUNT][FOLDER_HIDDEN];
    int32_t tokens[COUNT];
    decoder_sequence *a, *none;
    decoder_error error;
    make_tokens(tokens);
    folder_write(*state, &qwen);
    decoder *d = open_folder(*state, 1);
    assert_int_equal(decoder_sequence_new(d, 0, &none, &error), -1);
    assert_int_equal(decoder_sequence_new(d, FOLDER_POSITIONS + 1, &none, &error), -1);
    assert_null(none);
    assert_int_equal(decoder_sequence_new(d, 10, &a, &error), 0);
    assert_int_equal(decoder_feed(d, a, tokens, 11, 0, hidden[0], &error), -1);
    assert_non_null(strstr(error.message, "do not fit"));
    assert_int_equal(decoder_feed(d, a, (int32_t[]){1, FOLDER_VOCAB}, 2, 0, hidden[0], &error), -1);
    assert_non_null(strstr(error.message, "tokens: entry 1"));
    assert_int_equal(decoder_feed(d, a, (int32_t[]){-1}, 1, 0, hidden[0], &error), -1);
    assert_int_equal(decoder_feed(d, a, tokens, 2, 0, NULL, &error), -1);
    assert_int_equal(decoder_feed(d, a, tokens, 2, 3, hidden[0], &error), -1);
    assert_int_equal(decoder_step(d, (decoder_sequence *[]){a, a}, tokens, 2, hidden[0], &error),
                     -1);
    assert_non_null(strstr(error.message, "are the same"));
    const int32_t own_parent[3] = {0, 1, 1}, negative[2] = {0, -1};
    assert_int_equal(decoder_feed_tree(d, a, tokens, own_parent, 3, hidden[0], &error), -1);
    assert_non_null(strstr(error.message, "parents: entry 1"));
    assert_int_equal(decoder_feed_tree(d, a, tokens, negative, 2, hidden[0], &error), -1);
    assert_int_equal(decoder_feed_tree(d, a, tokens, own_parent, 0, hidden[0], &error), -1);
    assert_int_equal(decoder_sequence_length(a), 0);
    assert_int_equal(decoder_feed(d, a, tokens, 0, 0, NULL, &error), 0);
    assert_int_equal(decoder_open(*state, 1000, &(decoder *){NULL}, &error), -1);
    decoder_sequence_free(a);
    decoder_close(d);
}

static void tied_and_untied_heads(void **state)
{
    folder_write(*state, &llama);
    decoder *d = open_folder(*state, 1);
    gumbel_tensor head = decoder_head(d);
    assert_int_equal(head.rows, FOLDER_VOCAB);
    assert_int_equal(head.cols, FOLDER_HIDDEN);
    assert_int_equal(head.dtype, GUMBEL_BFLOAT16);
    const char *const names[] = {"model.embed_tokens.weight", "lm_head.weight"};
    int64_t parameters[2];
    for (int tied = 1; tied >= 0; tied--) {
        folder_options o = llama;
        o.dtype = TENSOR_F32;
        o.tied = tied;
        decoder_close(d);
        folder_write(*state, &o);
        d = open_folder(*state, 1);
        const float *weight = decoder_head(d).data;
        for (int i = 0; i < 100; i++) {
            assert_true((double)weight[i] == folder_weight(names[!tied], i));
        }
        parameters[tied] = decoder_describe(d)->parameters;
    }
    assert_int_equal(parameters[0] - parameters[1], FOLDER_VOCAB * FOLDER_HIDDEN);
    decoder_close(d);
}

static void incomplete_folders_return_an_error(void **state)
{
    static const struct {
        const char *leave_out, *reshape;
        tensor_dtype dtype;
        const char *config, *message;
    } cases[] = {
        {"lm_head.weight", NULL, TENSOR_F32, "", "lm_head.weight: is missing"},
        {"model.norm.weight", NULL, TENSOR_F32, "", "model.norm.weight: is missing"},
        {"model.layers.1.mlp.up_proj.weight", NULL, TENSOR_F32, "",
         "layers.1.mlp.up_proj.weight: is missing"},
        {NULL, "model.embed_tokens.weight", TENSOR_F32, "",
         "embed_tokens.weight: shape is [639, 44], not [640, 44]"},
        {NULL, "model.layers.0.self_attn.k_proj.weight", TENSOR_F32, "",
         "k_proj.weight: shape is [29, 44], not [30, 44]"},
        {NULL, "model.norm.weight", TENSOR_F32, "", "model.norm.weight: shape is [43], not [44]"},
        {NULL, NULL, TENSOR_I32, "", "model.embed_tokens.weight: dtype I32 is not supported"},
        {NULL, NULL, TENSOR_F32, "\"attention_bias\":true,", "config.json: attention_bias"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool integers = cases[i].dtype == TENSOR_I32;
        folder_options o = {.family = "llama",
                            .dtype = cases[i].dtype,
                            .config = cases[i].config,
                            .leave_out = cases[i].leave_out,
                            .reshape = cases[i].reshape};
        decoder *d;
        decoder_error error = {""};
        folder_write(*state, &o);
        assert_int_equal(decoder_open(*state, 1, &d, &error), -1);
        assert_null(d);
        if (!strstr(error.message, cases[i].message) && !integers) {
            fail_msg("%s", error.message);
        }
        if (strncmp(error.message, *state, strlen(*state)) != 0) {
            fail_msg("%s does not name the file", error.message);
        }
    }
    folder_write(*state, &llama);
    remove(scratch_path(*state, "tokenizer.json"));
    decoder *d;
    decoder_error error;
    assert_int_equal(decoder_open(*state, 1, &d, &error), -1);
    assert_non_null(strstr(error.message, "tokenizer.json"));
}

int main(void)
{
#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(hidden_states_match_the_reference),
        WITH_FOLDER(dtypes_shards_and_threads_give_the_same_bits),
        WITH_FOLDER(every_way_to_feed_gives_the_same_bits),
        WITH_FOLDER(tree_nodes_match_their_paths),
        WITH_FOLDER(invalid_calls_change_nothing),
        WITH_FOLDER(tied_and_untied_heads),
        WITH_FOLDER(incomplete_folders_return_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
