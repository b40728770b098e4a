/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "decoder/files/folder_hints.h"
#include "decoder/files/json_file.h"
#include "decoder/files/mapping.h"
#include "decoder/tokenizer/tokenizer.h"
#include "decoder/tokenizer/tokenizer_parts.h"

/* Reads the bos token, unless add_bos_token is false. */
static int read_bos(tokenizer *t, const json_place *config)
{
    bool add = true;
    if (json_flag(config, "add_bos_token", false, &add) != 0) {
        return -1;
    }
    const json_t *bos = json_value(config, "bos_token");
    /* Older files have an added-token object instead of its content. */
    const char *content =
        json_string_value(json_is_object(bos) ? json_object_get(bos, "content") : bos);
    if (!bos || !add) {
        return 0;
    }
    int32_t id = content ? tokenizer_find(t, content) : -1;
    if (id < 0) {
        return json_fail(config, "bos_token", "is not a token of tokenizer.json");
    }
    return token_list_append(&t->before, &id, 1) == 0
               ? 0
               : json_fail(config, "bos_token", "out of memory");
}

static int read_config(tokenizer *t, const char *path, decoder_error *error)
{
    file_mapping mapping;
    if (file_map(path, &mapping, error) != 0) {
        return -1;
    }
    json_place place = {
        path, "", json_document(mapping.data, mapping.size, JSON_NUMBERS_REAL, path, error), error};
    int result = place.object ? read_bos(t, &place) : -1;
    json_decref((json_t *)(uintptr_t)place.object);
    file_unmap(&mapping);
    return result;
}

int tokenizer_open(const char *folder, tokenizer **result, decoder_error *error)
{
    *result = NULL;
    file_mapping mapping = {0};
    char *path = path_join(folder, "tokenizer.json");
    char *config = path_join(folder, "tokenizer_config.json");
    int status = !path || !config     ? decoder_fail(error, folder, NULL, "out of memory")
                 : !file_exists(path) ? hint_missing_tokenizer(folder, error)
                                      : file_map(path, &mapping, error);
    if (status == 0) {
        status = tokenizer_parse(mapping.data, mapping.size, path, result, error);
        file_unmap(&mapping);
    }
    if (status == 0 && (*result)->before.count + (*result)->after.count == 0 &&
        file_exists(config)) {
        status = read_config(*result, config, error);
    }
    if (status != 0) {
        tokenizer_close(*result);
        *result = NULL;
    }
    free(path);
    free(config);
    return status;
}
