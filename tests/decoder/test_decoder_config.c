/* SPDX-License-Identifier: Apache-2.0
 *
 * Valid and invalid config.json files, and the rotary frequencies computed from them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "decoder/files/config.h"
#include "scratch_folder.h"

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"                         \
    "\"num_attention_heads\":4,\"vocab_size\":1000,\"max_position_embeddings\":128,"               \
    "\"rms_norm_eps\":1e-5"
#define LLAMA "{\"model_type\":\"llama\"," SIZES
#define QWEN  "{\"model_type\":\"qwen3\",\"head_dim\":32," SIZES
#define LLAMA3_ROPE                                                                                \
    "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                            \
    "\"original_max_position_embeddings\":8192"

static model_config parse_valid_config(const char *text)
{
    model_config config;
    decoder_error error;
    if (config_parse(text, strlen(text), "C", &config, &error) != 0) {
        fail_msg("%s: %s", text, error.message);
    }
    return config;
}

static void families_and_defaults(void **state)
{
    (void)state;
    model_config c = parse_valid_config(LLAMA "}");
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.kv_heads, 4);
    assert_false(c.head_norm);
    assert_false(c.tied);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.eos_count, 0);
    assert_true(c.rope.theta == 10000);
    c = parse_valid_config(
        QWEN ",\"num_key_value_heads\":2,\"tie_word_embeddings\":true,\"rope_theta\":1000000,"
             "\"architectures\":[\"Qwen3ForCausalLM\"],\"sliding_window\":null,"
             "\"use_sliding_window\":false,\"bos_token_id\":5,\"eos_token_id\":[7,9]}");
    assert_true(c.head_norm);
    assert_true(c.tied);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.bos_id, 5);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos_ids[1], 9);
    assert_true(c.rope.theta == 1000000);
    c = parse_valid_config(QWEN
                           ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000}}");
    assert_true(c.rope.theta == 5000 && !c.rope.llama3);
    c = parse_valid_config(
        LLAMA ",\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3_ROPE
              "}}");
    assert_true(c.rope.theta == 500000 && c.rope.llama3 && c.rope.factor == 32);
    c = parse_valid_config(
        LLAMA ",\"rope_parameters\":{\"rope_theta\":500000,\"rope_type\":\"llama3\"," LLAMA3_ROPE
              "}}");
    assert_true(c.rope.theta == 500000 && c.rope.llama3 && c.rope.original_positions == 8192);
}

static void unsupported_configs_return_an_error_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *field;
    } cases[] = {
        {"", "line 1"},
        {"[]", "line 1"},
        {"{", "line 1"},
        {"{}", "model_type"},
        {"{\"model_type\":\"gemma3\"," SIZES "}", "model_type"},
        {"{\"model_type\":[\"llama\"]," SIZES "}", "model_type"},
        {"{\"model_type\":\"qwen3\"," SIZES "}", "head_dim"},
        {LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}", "architectures"},
        {LLAMA ",\"architectures\":\"LlamaForCausalLM\"}", "architectures"},
        {LLAMA ",\"attention_bias\":true}", "attention_bias"},
        {LLAMA ",\"attention_bias\":1}", "attention_bias"},
        {LLAMA ",\"mlp_bias\":true}", "mlp_bias"},
        {LLAMA ",\"sliding_window\":4096}", "sliding_window"},
        {QWEN ",\"use_sliding_window\":true,\"sliding_window\":4096}", "use_sliding_window"},
        {QWEN ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types"},
        {LLAMA ",\"quantization_config\":{\"bits\":4}}", "quantization_config"},
        {LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act"},
        {LLAMA ",\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "rope_scaling.rope_type"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
         "rope_scaling.rope_type"},
        {LLAMA ",\"rope_scaling\":{\"factor\":2}}", "rope_scaling.rope_type"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}}", "low_freq_factor"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_parameters\":{}}",
         "rope_scaling"},
        {LLAMA ",\"rope_theta\":1,\"rope_parameters\":{\"rope_theta\":2}}", "rope_theta"},
        {LLAMA ",\"rope_scaling\":\"llama3\"}", "rope_scaling"},
        {LLAMA ",\"num_key_value_heads\":3}", "num_key_value_heads"},
        {LLAMA ",\"num_key_value_heads\":0}", "num_key_value_heads"},
        {LLAMA ",\"head_dim\":15}", "head_dim"},
        {LLAMA ",\"head_dim\":1e2}", "head_dim"},
        {LLAMA ",\"eos_token_id\":1000}", "eos_token_id"},
        {LLAMA ",\"eos_token_id\":[1,-1]}", "eos_token_id"},
        {LLAMA ",\"eos_token_id\":\"</s>\"}", "eos_token_id"},
        {LLAMA ",\"bos_token_id\":-5}", "bos_token_id"},
        {LLAMA ",\"vocab_size\":7}", "line 1"},
        {LLAMA ",\"x\":99999999999999999999999999}", "line 1"},
        {LLAMA ",\"x\":1e999}", "line 1"},
        {LLAMA ",\"\\u0000\":1}", "line 1"},
        {"{\"model_type\":\"llama\",\"hidden_size\":-64}", "hidden_size"},
        {"{\"model_type\":\"llama\",\"hidden_size\":9223372036854775807}", "hidden_size"},
        {"{\"model_type\":\"llama\",\"hidden_size\":64}", "intermediate_size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config config;
        decoder_error error = {""};
        assert_int_equal(config_parse(cases[i].text, strlen(cases[i].text), "C", &config, &error),
                         -1);
        if (strncmp(error.message, "C: ", 3) != 0 || !strstr(error.message, cases[i].field)) {
            fail_msg("%s: %s", cases[i].text, error.message);
        }
    }
}

static void deep_nesting_returns_an_error(void **state)
{
    (void)state;
    static char bomb[2000000];
    memset(bomb, '[', sizeof bomb);
    memcpy(bomb, "{\"a\":", 5);
    model_config config;
    decoder_error error = {""};
    assert_int_equal(config_parse(bomb, sizeof bomb, "C", &config, &error), -1);
    assert_non_null(strstr(error.message, "depth"));
}

static void generation_config_replaces_eos(void **state)
{
    model_config config;
    decoder_error error;
    scratch_write_text(*state, "config.json", LLAMA ",\"eos_token_id\":1}");
    assert_int_equal(config_load(*state, &config, &error), 0);
    assert_int_equal(config.eos_ids[0], 1);
    const char *path =
        scratch_write_text(*state, "generation_config.json", "{\"eos_token_id\":[3,4]}");
    assert_int_equal(config_load(*state, &config, &error), 0);
    assert_int_equal(config.eos_count, 2);
    assert_int_equal(config.eos_ids[0], 3);
    scratch_write_text(*state, "generation_config.json", "{\"temperature\":0.6}");
    assert_int_equal(config_load(*state, &config, &error), 0);
    assert_int_equal(config.eos_ids[0], 1);
    scratch_write_text(*state, "generation_config.json", "{\"eos_token_id\":5000}");
    assert_int_equal(config_load(*state, &config, &error), -1);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, "eos_token_id"));
}

/* Llama-3.2-1B: head_dim 64, theta 500000, factor 32, low 1, high 4, 8192 positions. Frequencies
 * with a wavelength below 8192/4 are unchanged; those with a wavelength above 8192 are divided by
 * 32. By hand, in double: i = 0: 500000^0 = 1, wavelength 6.28: kept. i = 14: 500000^(-28/64) =
 * 3.2114e-3, wavelength 1956 < 2048: kept. i = 15: 500000^(-30/64) = 2.1311e-3, wavelength 2948,
 * 2.7785 turns, share (2.7785 - 1) / 3 = 0.59284: 2.1311e-3 * (0.59284 + 0.40716 / 32) = 1.2905e-3.
 * i = 18: 500000^(-36/64) = 6.2277e-4, wavelength 10089 > 8192: 6.2277e-4 / 32 = 1.9462e-5. */
static void llama3_frequencies(void **state)
{
    (void)state;
    rope_config rope = {.theta = 500000,
                        .llama3 = true,
                        .factor = 32,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_positions = 8192};
    static const struct {
        int i;
        double want;
    } known[] = {{0, 1.0}, {14, 3.21145e-3}, {15, 1.29055e-3}, {18, 1.94616e-5}};
    float got[32];
    rope_frequencies(&rope, 64, got);
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (fabs(got[known[k].i] / known[k].want - 1) > 5e-5) {
            fail_msg("frequency %d is %.6g, not %.6g", known[k].i, (double)got[known[k].i],
                     known[k].want);
        }
    }
    rope.llama3 = false;
    rope_frequencies(&rope, 64, got);
    assert_true(fabs(got[18] / 6.22772e-4 - 1) < 5e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_and_defaults),
        cmocka_unit_test(unsupported_configs_return_an_error_by_name),
        cmocka_unit_test(deep_nesting_returns_an_error),
        cmocka_unit_test_setup_teardown(generation_config_replaces_eos, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test(llama3_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
