/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/arrays/npy_header.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *descr;
    tensor_dtype dtype;
} spellings[] = {
    {"<f4", TENSOR_F32}, {"<f2", TENSOR_F16}, {"<i4", TENSOR_I32}, {"<i8", TENSOR_I64},
    {"<u2", TENSOR_U16}, {"<u4", TENSOR_U32}, {"<u8", TENSOR_U64},
};

/* The unread text, and the error to fill. */
typedef struct cursor {
    const char *at;
    const char *end;
    const char *name;
    decoder_error *error;
} cursor;

static void skip_spaces(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) {
        c->at++;
    }
}

/* Skips spaces and `symbol`, if it comes next. */
static bool skip_symbol(cursor *c, char symbol)
{
    skip_spaces(c);
    if (c->at < c->end && *c->at == symbol) {
        c->at++;
        return true;
    }
    return false;
}

/* Skips the word, if it comes next. */
static bool skip_word(cursor *c, const char *word)
{
    size_t length = strlen(word);
    skip_spaces(c);
    if ((size_t)(c->end - c->at) >= length && memcmp(c->at, word, length) == 0) {
        c->at += length;
        return true;
    }
    return false;
}

/* Reads a string literal without escapes, of at most `size` - 1 bytes. */
static bool read_string(cursor *c, char *text, size_t size)
{
    char quote = skip_symbol(c, '\'') ? '\'' : skip_symbol(c, '"') ? '"' : '\0';
    size_t length = 0;
    while (quote && c->at < c->end && *c->at != quote && *c->at != '\\' && length < size - 1) {
        text[length++] = *c->at++;
    }
    text[length] = '\0';
    return quote && c->at < c->end && *c->at++ == quote;
}

static int read_descr(cursor *c, tensor_view *view)
{
    char descr[32];
    if (!read_string(c, descr, sizeof descr)) {
        return decoder_fail(c->error, c->name, "descr", "is not a short string");
    }
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        if (strcmp(descr, spellings[i].descr) == 0) {
            view->dtype = spellings[i].dtype;
            return 0;
        }
    }
    return decoder_fail(c->error, c->name, "descr",
                        "'%s' is not supported; <f4, <f2, <i4, <i8, <u2, <u4 and <u8 are", descr);
}

static int read_order(cursor *c)
{
    if (skip_word(c, "False")) {
        return 0;
    }
    return decoder_fail(c->error, c->name, "fortran_order", "is not False: only C order is read");
}

static bool read_size(cursor *c, int64_t *size)
{
    skip_spaces(c);
    const char *first = c->at;
    *size = 0;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        if (__builtin_mul_overflow(*size, 10, size) ||
            __builtin_add_overflow(*size, *c->at - '0', size)) {
            return false;
        }
        c->at++;
    }
    return c->at > first;
}

static int read_shape(cursor *c, int *rank, int64_t *shape)
{
    *rank = 0;
    bool open = skip_symbol(c, '(');
    while (open && !skip_symbol(c, ')')) {
        if (*rank == TENSOR_MAX_RANK) {
            return decoder_fail(c->error, c->name, "shape", "has more than %d sizes",
                                TENSOR_MAX_RANK);
        }
        if (!read_size(c, &shape[*rank])) {
            return decoder_fail(c->error, c->name, "shape", "entry %d is not a size", *rank);
        }
        (*rank)++;
        /* "(3)" is no tuple in Python: a single size has a comma. */
        bool comma = skip_symbol(c, ',');
        if (!comma && (*rank == 1 || !skip_symbol(c, ')'))) {
            open = false;
        } else if (!comma) {
            return 0;
        }
    }
    return open ? 0 : decoder_fail(c->error, c->name, "shape", "is not a tuple of sizes");
}

int npy_header_read(const char *text, size_t length, const char *name, tensor_view *view,
                    decoder_error *error)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    cursor c = {text, text + length, name, error};
    unsigned seen = 0;
    int rank = 0;
    int64_t shape[TENSOR_MAX_RANK] = {0};
    if (!skip_symbol(&c, '{')) {
        return decoder_fail(error, name, "header", "is not a dictionary");
    }
    while (!skip_symbol(&c, '}')) {
        char key[32];
        if (!read_string(&c, key, sizeof key) || !skip_symbol(&c, ':')) {
            return decoder_fail(error, name, "header", "has an entry that is not 'key': value");
        }
        unsigned which = 0;
        while (which < 3 && strcmp(key, keys[which]) != 0) {
            which++;
        }
        if (which == 3 || seen & 1u << which) {
            return decoder_fail(error, name, key, "is an unknown key or comes twice");
        }
        seen |= 1u << which;
        int result = which == 0   ? read_descr(&c, view)
                     : which == 1 ? read_order(&c)
                                  : read_shape(&c, &rank, shape);
        if (result != 0) {
            return -1;
        }
        if (!skip_symbol(&c, ',') && (c.at == c.end || *c.at != '}')) {
            return decoder_fail(error, name, "header", "lacks a comma after '%s'", key);
        }
    }
    for (unsigned which = 0; which < 3; which++) {
        if (!(seen & 1u << which)) {
            return decoder_fail(error, name, keys[which], "is missing");
        }
    }
    skip_spaces(&c);
    if (c.at != c.end) {
        return decoder_fail(error, name, "header", "goes on after the dictionary");
    }
    return tensor_set_shape(view, rank, shape)
               ? 0
               : decoder_fail(error, name, "shape", "the number of bytes overflows");
}

size_t npy_header_write(const tensor_view *view, char out[NPY_HEADER_MAX])
{
    const char *descr = NULL;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        if (view->dtype == spellings[i].dtype) {
            descr = spellings[i].descr;
        }
    }
    if (!descr) {
        return 0;
    }
    char *text = out + NPY_MAGIC_SIZE + 2;
    size_t room = NPY_HEADER_MAX - NPY_MAGIC_SIZE - 2;
    size_t length =
        (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < view->rank; i++) {
        const char *after = view->rank == 1 ? "," : i + 1 < view->rank ? ", " : "";
        length += (size_t)snprintf(text + length, room - length, "%lld%s",
                                   (long long)view->shape[i], after);
    }
    length += (size_t)snprintf(text + length, room - length, "), }");
    size_t total = (NPY_MAGIC_SIZE + 2 + length + 1 + 63) / 64 * 64;
    memset(text + length, ' ', total - NPY_MAGIC_SIZE - 2 - length);
    out[total - 1] = '\n';
    memcpy(out, NPY_MAGIC, NPY_MAGIC_SIZE);
    size_t count = total - NPY_MAGIC_SIZE - 2;
    out[NPY_MAGIC_SIZE] = (char)(count & 0xff);
    out[NPY_MAGIC_SIZE + 1] = (char)(count >> 8);
    return total;
}
