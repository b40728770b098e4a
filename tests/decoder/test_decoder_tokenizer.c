/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and decoding, compared with tests/models/golden.json and tokenizer_cases.json, which
 * make_tokenizer_cases.py wrote with the reference implementation; and invalid tokenizer files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>
#include <utf8proc.h>

#include "decoder/files/mapping.h"
#include "decoder/tokenizer/tokenizer.h"
#include "scratch_folder.h"

static tokenizer *open_tokenizer(const char *folder)
{
    tokenizer *t;
    decoder_error error;
    if (tokenizer_open(folder, &t, &error) != 0) {
        fail_msg("%s", error.message);
    }
    return t;
}

/* The tokenizer called `name`: a bundled model's, or one of tokenizers/. */
static tokenizer *open_named(const char *name)
{
    bool bundled = strncmp(name, "kjv", 3) == 0;
    return open_tokenizer(scratch_path(bundled ? MODELS_FOLDER : CASES_FOLDER "/tokenizers", name));
}

/* Decodes the ids at once and one by one. The result must be the text of the special tokens in
 * front, then `text` (in Unicode form C if the tokenizer normalises). */
static void check_decode(const tokenizer *t, const token_list *ids, const char *text, size_t size,
                         bool form_c)
{
    token_text whole;
    utf8proc_uint8_t *composed = NULL;
    assert_int_equal(tokenizer_decode(t, ids->ids, ids->count, false, &whole), 0);
    if (form_c) {
        utf8proc_ssize_t length =
            utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &composed,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        text = (const char *)composed;
        size = (size_t)length;
    }
    assert_true(whole.size >= size);
    assert_memory_equal(whole.bytes + whole.size - size, text, size);
    token_stream stream = {0};
    size_t done = 0;
    for (size_t i = 0; i <= ids->count; i++) {
        token_text piece;
        int result = i < ids->count ? tokenizer_decode_next(t, &stream, ids->ids[i], false, &piece)
                                    : tokenizer_decode_end(&stream, &piece);
        assert_int_equal(result, 0);
        assert_true(done + piece.size <= whole.size);
        assert_memory_equal(piece.bytes, whole.bytes + done, piece.size);
        done += piece.size;
        free(piece.bytes);
    }
    assert_int_equal(done, whole.size);
    free(whole.bytes);
    free(composed);
}

static void check_case(const tokenizer *t, const json_t *item, bool special, bool form_c)
{
    const json_t *text = json_object_get(item, "text");
    const json_t *want = json_object_get(item, "ids");
    token_list ids = {0};
    decoder_error error;
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids,
                         &error) != 0) {
        fail_msg("%s", error.message);
    }
    for (size_t i = 0; i < ids.count && i < json_array_size(want); i++) {
        if (ids.ids[i] != json_integer_value(json_array_get(want, i))) {
            fail_msg("\"%s\": id %zu is %d, not %lld", json_string_value(text), i, ids.ids[i],
                     (long long)json_integer_value(json_array_get(want, i)));
        }
    }
    assert_int_equal(ids.count, json_array_size(want));
    check_decode(t, &ids, json_string_value(text), json_string_length(text), form_c);
    token_list_free(&ids);
}

static void golden_cases_match(void **state)
{
    (void)state;
    json_t *document = json_load_file(MODELS_FOLDER "/golden.json", 0, NULL);
    const json_t *cases = json_object_get(document, "tokenizer");
    tokenizer *t = open_named("kjv-target");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(t, json_array_get(cases, i), false, false);
    }
    tokenizer_close(t);
    json_decref(document);
}

static void hard_cases_match(void **state)
{
    (void)state;
    json_t *document = json_load_file(CASES_FOLDER "/tokenizer_cases.json", JSON_ALLOW_NUL, NULL);
    assert_int_equal(json_object_size(document), 4);
    const char *name;
    json_t *group;
    json_object_foreach (document, name, group) {
        tokenizer *t = open_named(name);
        const json_t *cases = json_object_get(group, "cases");
        assert_true(json_array_size(cases) >= 100);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            check_case(t, json_array_get(cases, i), json_is_true(json_object_get(group, "special")),
                       strcmp(name, "qwen") == 0);
        }
        tokenizer_close(t);
    }
    json_decref(document);
}

static void invalid_text_returns_its_offset(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t size, offset;
    } texts[] = {
        {"abc\xff", 4, 3},          {"\x80", 1, 0},     {"a\xc3", 2, 1},
        {"\xe2\x82", 2, 0},         {"\xc0\xaf", 2, 0}, {"ok \xed\xa0\x80", 6, 3},
        {"\xf4\x90\x80\x80", 4, 0},
    };
    tokenizer *t = open_named("kjv-target");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        token_list ids = {0};
        decoder_error error;
        char want[64];
        int32_t had = 7;
        token_list_append(&ids, &had, 1);
        snprintf(want, sizeof want, "byte offset %zu", texts[i].offset);
        assert_int_equal(tokenizer_encode(t, texts[i].text, texts[i].size, true, &ids, &error), -1);
        assert_non_null(strstr(error.message, want));
        assert_int_equal(ids.count, 1);
        token_list_free(&ids);
    }
    tokenizer_close(t);
}

static void stream_replaces_invalid_utf8(void **state)
{
    (void)state;
    /* Single-byte tokens of the bundled tokenizer. The expected text follows the recommendation of
     * Unicode: one U+FFFD for each maximal invalid sequence. */
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xff", "\xef\xbf\xbd"},
        {"a\xe2\x82z", "a\xef\xbf\xbdz"},
        {"\xe2\x82\xac", "\xe2\x82\xac"},
        {"\xe2\x28", "\xef\xbf\xbd("},
        {"\xf0\x9f\x99", "\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    };
    tokenizer *t = open_named("kjv-target");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        token_list ids = {0};
        token_text text;
        for (const char *byte = cases[i].bytes; *byte; byte++) {
            char single[2] = {*byte, '\0'};
            int32_t id = tokenizer_find(t, single);
            assert_true(id >= 0);
            token_list_append(&ids, &id, 1);
        }
        assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, true, &text), 0);
        assert_string_equal(text.bytes, cases[i].text);
        free(text.bytes);
        token_list_free(&ids);
    }
    tokenizer_close(t);
}

static void special_tokens_around_a_prompt(void **state)
{
    tokenizer *t = open_named("llama");
    token_list ids = {0};
    assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, NULL), 0);
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.ids[0], tokenizer_find(t, "<|begin_of_text|>"));
    token_text text;
    assert_int_equal(tokenizer_decode(t, ids.ids, 1, true, &text), 0);
    assert_int_equal(text.size, 0);
    free(text.bytes);
    token_list_free(&ids);
    tokenizer_close(t);

    /* Without a template: the bos token of tokenizer_config.json, unless the file disables it. */
    static const struct {
        const char *config;
        size_t count;
    } configs[] = {
        {"{\"bos_token\": \"<|endoftext|>\", \"model_max_length\": "
         "1000000000000000019884624838656}",
         1},
        {"{\"bos_token\": {\"content\": \"<|endoftext|>\"}}", 1},
        {"{\"bos_token\": \"<|endoftext|>\", \"add_bos_token\": false}", 0},
        {"{\"bos_token\": null}", 0},
    };
    scratch_copy(*state, "tokenizer.json", CASES_FOLDER "/tokenizers/gpt2/tokenizer.json");
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        scratch_write_text(*state, "tokenizer_config.json", configs[i].config);
        t = open_tokenizer(*state);
        assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, NULL), 0);
        assert_int_equal(ids.count, configs[i].count);
        token_list_free(&ids);
        tokenizer_close(t);
    }
}

/* Encodes `size` bytes of one repeated pattern; returns the seconds taken. */
static double seconds_for(const tokenizer *t, const char *pattern, size_t size)
{
    char *text = malloc(size);
    size_t period = strlen(pattern);
    for (size_t i = 0; i < size; i++) {
        text[i] = pattern[i % period];
    }
    token_list ids = {0};
    clock_t start = clock();
    assert_int_equal(tokenizer_encode(t, text, size, false, &ids, NULL), 0);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    token_list_free(&ids);
    free(text);
    return seconds;
}

/* Quadratic merging would take minutes; the limit is generous, for sanitizers. */
static void long_words_take_linear_time(void **state)
{
    (void)state;
    static const char *const patterns[] = {"a", "the", " ", "\n", "!", "<", "<|end", "9"};
    tokenizer *t = open_named("kjv-target");
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        double seconds = seconds_for(t, patterns[i], 1000000);
        print_message("1 MB of \"%s\": %.2f s\n", patterns[i][0] < ' ' ? "newlines" : patterns[i],
                      seconds);
        assert_true(seconds < 30);
    }
    tokenizer_close(t);
}

/* A change of the Qwen tokenizer's file: the original text, its replacement, and the field that the
 * error must name. */
static const struct {
    const char *from, *to, *field;
} changes[] = {
    {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "model.type"},
    {"\"type\":\"NFC\"", "\"type\":\"NFKC\"", "normalizer.type"},
    {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "pre_tokenizer.behavior"},
    {"\"invert\":false", "\"invert\":true", "pre_tokenizer.invert"},
    {"\"Regex\":\"(?i:", "\"Regex\":\"(?i:(((", "pre_tokenizer.pattern"},
    {"\"Regex\":", "\"String\":", "pre_tokenizer.pattern"},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "pre_tokenizer.add_prefix_space"},
    {"\"lstrip\":false", "\"lstrip\":true", "added_tokens[0].lstrip"},
    {"\"content\":\"<|im_end|>\"", "\"content\":\"<|im_start|>\"", "added_tokens"},
    {"\"content\":\"<|im_end|>\"", "\"content\":\"\"", "added_tokens[2].content"},
    {"\"content\":\"<|im_end|>\"", "\"content\":7", "added_tokens[2].content"},
    {"\"truncation\":null", "\"truncation\":{\"max_length\":4}", "truncation"},
    {"\"dropout\":null", "\"dropout\":0.5", "model.dropout"},
    {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "model.end_of_word_suffix"},
    {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback"},
    {"\"!\":0", "\"!\":-1", "model.vocab"},
    {"\"!\":0", "\"!\":99999999999", "model.vocab"},
    {"\"!\":0", "\"!\":1", "model.vocab"},
    {"\"!\":0", "\"!!!!\":0", "model.vocab"},
    {"\"!\":0", "\"!\":\"0\"", "model.vocab"},
    {"\"merges\":[", "\"merges\":[[\"!\"],", "model.merges"},
    {"\"merges\":[", "\"merges\":[\"! ! !\",", "model.merges"},
    {"\"merges\":[", "\"merges\":[[\"!\",\"zz\"],", "model.merges"},
    {"\"merges\":[", "\"merges\":{},\"x\":[", "model.merges"},
    {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", "decoder.type"},
    {"\"version\"", "\"vers\\u0000ion\"", "line 1"},
};

static void changed_files_return_an_error_by_field(void **state)
{
    (void)state;
    file_mapping file;
    assert_int_equal(file_map(CASES_FOLDER "/tokenizers/qwen/tokenizer.json", &file, NULL), 0);
    char *original = calloc(1, file.size + 1);
    for (size_t at = 0, to = 0; at < file.size; at++) {
        if (file.data[at] != '\n') {
            original[to++] = (char)file.data[at];
        }
    }
    char *changed = malloc(file.size + 256);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *place = strstr(original, changes[i].from);
        tokenizer *t;
        decoder_error error = {""};
        if (!place) {
            fail_msg("%s is not in the file", changes[i].from);
        }
        int length = sprintf(changed, "%.*s%s%s", (int)(place - original), original, changes[i].to,
                             place + strlen(changes[i].from));
        assert_int_equal(tokenizer_parse(changed, (size_t)length, "T", &t, &error), -1);
        assert_null(t);
        if (strncmp(error.message, "T: ", 3) != 0 || !strstr(error.message, changes[i].field)) {
            fail_msg("%s: %s", changes[i].to, error.message);
        }
    }
    free(changed);
    free(original);
    file_unmap(&file);
}

static void truncated_files_return_an_error(void **state)
{
    (void)state;
    file_mapping file;
    assert_int_equal(file_map(CASES_FOLDER "/tokenizers/gpt2/tokenizer.json", &file, NULL), 0);
    for (size_t size = 0; size + 2 < file.size; size += 97) {
        tokenizer *t;
        decoder_error error = {""};
        assert_int_equal(tokenizer_parse(file.data, size, "T", &t, &error), -1);
        assert_null(t);
        assert_non_null(strstr(error.message, "T: "));
    }
    file_unmap(&file);
}

/* A pattern that backtracks without end returns an error. */
static void endless_patterns_reach_the_match_limit(void **state)
{
    (void)state;
    file_mapping file;
    assert_int_equal(file_map(CASES_FOLDER "/tokenizers/qwen/tokenizer.json", &file, NULL), 0);
    json_t *document = json_loadb((const char *)file.data, file.size, 0, NULL);
    json_t *steps = json_object_get(json_object_get(document, "pre_tokenizer"), "pretokenizers");
    json_t *pattern = json_object_get(json_array_get(steps, 0), "pattern");
    json_object_set_new(pattern, "Regex", json_string("(?:(a|a)*)*[bc]"));
    char *text = json_dumps(document, JSON_COMPACT);
    tokenizer *t;
    decoder_error error = {""};
    assert_int_equal(tokenizer_parse(text, strlen(text), "T", &t, &error), 0);
    char word[64];
    memset(word, 'a', sizeof word);
    token_list ids = {0};
    assert_int_equal(tokenizer_encode(t, word, sizeof word, false, &ids, &error), -1);
    assert_non_null(strstr(error.message, "match limit"));
    assert_int_equal(ids.count, 0);
    token_list_free(&ids);
    tokenizer_close(t);
    free(text);
    json_decref(document);
    file_unmap(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_match),
        cmocka_unit_test(hard_cases_match),
        cmocka_unit_test(invalid_text_returns_its_offset),
        cmocka_unit_test(stream_replaces_invalid_utf8),
        cmocka_unit_test_setup_teardown(special_tokens_around_a_prompt, scratch_set_up,
                                        scratch_tear_down),
        cmocka_unit_test(long_words_take_linear_time),
        cmocka_unit_test(changed_files_return_an_error_by_field),
        cmocka_unit_test(truncated_files_return_an_error),
        cmocka_unit_test(endless_patterns_reach_the_match_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
