/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "token_rows.h"

#include <float.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "tensor_file.h"

void require_token(const char *field, int64_t id, int64_t vocab)
{
    if (id >= vocab) {
        fail(field, "token id %lld is not below the vocabulary size V = %lld", (long long)id,
             (long long)vocab);
    }
}

/* Lists being filled. */
struct list_builder {
    int64_t *offsets; /* [rows + 1] */
    int32_t *ids;     /* [rows, count] at most */
    float *values;    /* the same, or NULL */
    int64_t rows;
    int64_t count;
};

static struct list_builder allocate_lists(const char *field, int64_t rows, int64_t count,
                                          bool with_values)
{
    int64_t all = 0;

    if (__builtin_mul_overflow(rows, count, &all)) {
        fail(field, "%lld ids for each of %lld rows are too many", (long long)count,
             (long long)rows);
    }
    return (struct list_builder){
        .offsets = require_memory(field, rows + 1, sizeof(int64_t)),
        .ids = require_memory(field, all, sizeof(int32_t)),
        .values = with_values ? require_memory(field, all, sizeof(float)) : NULL,
        .rows = rows,
        .count = count,
    };
}

/* Copies the list of the first row to every other row. */
static gumbel_token_lists repeat_first(const struct list_builder *lists)
{
    const size_t count = (size_t)lists->count;

    for (int64_t row = 0; row <= lists->rows; row++) {
        lists->offsets[row] = row * lists->count;
    }
    for (int64_t row = 1; row < lists->rows; row++) {
        memcpy(lists->ids + row * lists->count, lists->ids, count * sizeof *lists->ids);
        if (lists->values) {
            memcpy(lists->values + row * lists->count, lists->values,
                   count * sizeof *lists->values);
        }
    }
    return (gumbel_token_lists){
        .offsets = lists->offsets, .ids = lists->ids, .values = lists->values};
}

/* Parses a list of the command line, with or without values, for every row. */
static gumbel_token_lists parse_lists(const char *field, const char *text, int64_t rows,
                                      int64_t vocab, bool with_values)
{
    int64_t count = *text ? 1 : 0;
    char *copy = strdup(text);
    char *rest = copy;

    if (!copy) {
        fail(field, "not enough memory");
    }
    for (const char *next = text; *next; next++) {
        count += *next == ',';
    }
    /* At least one row, which receives the list. */
    struct list_builder lists = allocate_lists(field, rows > 0 ? rows : 1, count, with_values);

    for (int64_t i = 0; i < count; i++) {
        char *item = strsep(&rest, ",");
        char *value = with_values ? strchr(item, '=') : NULL;

        if (with_values && !value) {
            fail(field, "'%s' is not ID=VALUE", item);
        }
        if (value) {
            *value++ = '\0';
            lists.values[i] = strcmp(value, "-inf") == 0
                                  ? -__builtin_inff()
                                  : parse_float(field, value, -FLT_MAX, FLT_MAX);
        }
        lists.ids[i] = (int32_t)parse_integer(field, item, 0, INT32_MAX);
        require_token(field, lists.ids[i], vocab);
    }
    free(copy);
    return repeat_first(&lists);
}

/* Copies the ids of one row of a file, up to its first -1; returns their number. */
static int64_t read_row_ids(const char *field, const char *path, const int32_t *from, int64_t count,
                            int64_t vocab, int32_t *ids)
{
    for (int64_t i = 0; i < count; i++) {
        if (from[i] == -1) {
            return i;
        }
        if (from[i] < 0) {
            fail(field, "%s: %d is no token id", path, (int)from[i]);
        }
        require_token(field, from[i], vocab);
        ids[i] = from[i];
    }
    return count;
}

static gumbel_token_lists read_lists(const char *field, const char *path, int64_t rows,
                                     int64_t vocab)
{
    npy *array = open_int32_rows(field, path, rows, -1);
    const tensor_view *view = npy_tensor(array);
    const int64_t count = view->shape[view->rank - 1];
    const int64_t step = view->rank == 2 ? count : 0;
    struct list_builder lists = allocate_lists(field, rows, count, false);

    lists.offsets[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = lists.offsets[row];

        lists.offsets[row + 1] =
            at + read_row_ids(field, path, (const int32_t *)view->data + row * step, count, vocab,
                              lists.ids + at);
    }
    npy_close(array);
    return (gumbel_token_lists){.offsets = lists.offsets, .ids = lists.ids};
}

gumbel_token_lists read_token_rows(const char *field, const char *text, int64_t rows, int64_t vocab)
{
    if (!text) {
        return (gumbel_token_lists){0};
    }
    return names_npy(text) ? read_lists(field, text, rows, vocab)
                           : parse_lists(field, text, rows, vocab, false);
}

gumbel_token_lists read_value_rows(const char *field, const char *text, int64_t rows, int64_t vocab)
{
    return text ? parse_lists(field, text, rows, vocab, true) : (gumbel_token_lists){0};
}

void token_rows_free(gumbel_token_lists *lists)
{
    free((void *)lists->offsets);
    free((void *)lists->ids);
    free((void *)lists->values);
    *lists = (gumbel_token_lists){0};
}
