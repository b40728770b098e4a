/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limit of the steps of one match, linear in the text: patterns in use take a few for each byte,
 * and one that backtracks exponentially is stopped. */
#define STEPS_FIXED    65536
#define STEPS_PER_BYTE 32
/* Compiled patterns of tokenizers take a few KiB. */
#define PATTERN_MAX 65536

struct pretokenizer {
    pcre2_code *patterns[PRETOKENIZER_MAX_PATTERNS];
    size_t count;
};

/* The state of one call of pretokenizer_split(). */
typedef struct split {
    const pretokenizer *chain;
    pcre2_match_data *data;
    pcre2_match_context *limits;
    pretokenizer_word word;
    void *context;
    const char *file;
    decoder_error *error;
} split;

pretokenizer *pretokenizer_new(void) { return calloc(1, sizeof(pretokenizer)); }

void pretokenizer_free(pretokenizer *p)
{
    if (p) {
        for (size_t i = 0; i < p->count; i++) {
            pcre2_code_free(p->patterns[i]);
        }
        free(p);
    }
}

/* White space as Unicode defines it. PCRE2's own \s also takes U+180E, which is none any more. */
#define SPACES "\\x09-\\x0d\\x{85}\\p{Z}"
/* Largest growth of a pattern: \s, 2 bytes, becomes a class. */
#define SPACES_GROWTH (sizeof "[^" SPACES "]" / 2 + 1)

/* Expands \s and \S to classes, \s also within a class ([^\s...]).
 * `out` has room for SPACES_GROWTH * size bytes; returns the bytes written. */
static size_t spell_out_spaces(const char *pattern, size_t size, char *out)
{
    size_t used = 0;
    size_t first = 0; /* of a class: a bracket there does not close it */
    bool in_class = false;
    for (size_t i = 0; i < size; i++) {
        bool escape = pattern[i] == '\\' && i + 1 < size;
        bool space = escape && (pattern[i + 1] == 's' || (pattern[i + 1] == 'S' && !in_class));
        if (space) {
            const char *open = in_class ? "" : pattern[i + 1] == 's' ? "[" : "[^";
            used += (size_t)sprintf(out + used, "%s" SPACES "%s", open, in_class ? "" : "]");
            i++;
            continue;
        }
        out[used++] = pattern[i];
        if (escape) {
            out[used++] = pattern[++i];
        } else if (pattern[i] == '[' && !in_class) {
            in_class = true;
            first = i + 1 < size && pattern[i + 1] == '^' ? i + 2 : i + 1;
        } else if (pattern[i] == ']' && i != first) {
            in_class = false;
        }
    }
    return used;
}

static pcre2_code *compile_pattern(const char *pattern, size_t size, int *problem,
                                   PCRE2_SIZE *offset)
{
    char *spelled = malloc(SPACES_GROWTH * size + sizeof SPACES);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_code *code = NULL;
    *problem = PCRE2_ERROR_NOMEMORY;
    *offset = 0;
    if (spelled && context) {
        /* As in the reference implementation: ^ and $ match at lines, which end with LF. */
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        code = pcre2_compile((PCRE2_SPTR)spelled, spell_out_spaces(pattern, size, spelled), options,
                             problem, offset, context);
    }
    pcre2_compile_context_free(context);
    free(spelled);
    return code;
}

int pretokenizer_add(pretokenizer *p, const char *pattern, size_t size, const char *file,
                     const char *field, decoder_error *error)
{
    if (p->count == PRETOKENIZER_MAX_PATTERNS || size > PATTERN_MAX) {
        return decoder_fail(error, file, field, "more than %d patterns, or one above %d bytes",
                            PRETOKENIZER_MAX_PATTERNS, PATTERN_MAX);
    }
    int problem;
    PCRE2_SIZE offset;
    pcre2_code *code = compile_pattern(pattern, size, &problem, &offset);
    if (!code) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(problem, text, sizeof text);
        return decoder_fail(error, file, field, "%s, near byte %zu of the pattern",
                            (const char *)text, (size_t)offset);
    }
    /* If the system forbids JIT code, the interpreter is used. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    p->patterns[p->count++] = code;
    return 0;
}

/* Finds the next match at or after `from`: returns 1 with its bounds, 0 if none, -1 on an error. */
static int find_match(const split *s, size_t pattern, const char *text, size_t size, size_t from,
                      size_t *begin, size_t *end)
{
    const pcre2_code *code = s->chain->patterns[pattern];
    uint64_t steps = STEPS_FIXED + (uint64_t)STEPS_PER_BYTE * size;
    pcre2_set_match_limit(s->limits, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    int found =
        pcre2_match(code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, s->data, s->limits);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match(code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            s->data, s->limits);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (found < 0) {
        PCRE2_UCHAR message[128] = "";
        pcre2_get_error_message(found, message, sizeof message);
        return decoder_fail(s->error, s->file, "pre_tokenizer", "pattern %zu: %s", pattern,
                            (const char *)message);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(s->data);
    if (ends[0] < from || ends[1] < ends[0]) {
        return decoder_fail(s->error, s->file, "pre_tokenizer", "pattern %zu moves its own start",
                            pattern);
    }
    *begin = ends[0];
    *end = ends[1];
    return 1;
}

static int apply_pattern(const split *s, size_t pattern, const char *text, size_t size);

/* Splits a word by the next pattern, or reports it after the last. */
static int pass_on(const split *s, size_t pattern, const char *text, size_t size)
{
    if (size == 0) {
        return 0;
    }
    return pattern < s->chain->count ? apply_pattern(s, pattern, text, size)
                                     : s->word(s->context, text, size);
}

static size_t next_character(const char *text, size_t size, size_t at)
{
    at++;
    while (at < size && ((unsigned char)text[at] & 0xc0) == 0x80) {
        at++;
    }
    return at;
}

static int apply_pattern(const split *s, size_t pattern, const char *text, size_t size)
{
    size_t done = 0, from = 0, begin = 0, end = 0;
    while (from < size) {
        int found = find_match(s, pattern, text, size, from, &begin, &end);
        if (found < 0) {
            return -1;
        }
        if (found == 0) {
            break;
        }
        int result = pass_on(s, pattern + 1, text + done, begin - done);
        result = result != 0 ? result : pass_on(s, pattern + 1, text + begin, end - begin);
        if (result != 0) {
            return result;
        }
        done = end;
        /* An empty match splits the text; the search continues behind the next character. */
        from = end > begin ? end : next_character(text, size, end);
    }
    return pass_on(s, pattern + 1, text + done, size - done);
}

int pretokenizer_split(const pretokenizer *p, const char *text, size_t size, pretokenizer_word word,
                       void *context, const char *file, decoder_error *error)
{
    split s = {p,
               pcre2_match_data_create(1, NULL),
               pcre2_match_context_create(NULL),
               word,
               context,
               file,
               error};
    int result = s.data && s.limits ? pass_on(&s, 0, text, size)
                                    : decoder_fail(error, file, NULL, "out of memory");
    pcre2_match_data_free(s.data);
    pcre2_match_context_free(s.limits);
    return result;
}
