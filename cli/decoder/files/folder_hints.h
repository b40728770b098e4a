/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors about files and folders that the decoder does not read, as a newcomer has them: each names
 * what the thing is and says what to do.
 */
#ifndef DECODER_FOLDER_HINTS_H
#define DECODER_FOLDER_HINTS_H

#include <stddef.h>

#include "decoder/error.h"

/* hint_check_bytes(): whether the bytes of a file may be what the decoder reads.
 *  returns  0; -1 with `error` filled for a Git LFS pointer, a GGUF file and a zip archive. */
int hint_check_bytes(const char *path, const unsigned char *bytes, size_t size,
                     decoder_error *error);

/* hint_check_folder(): whether `folder` may be a model folder.
 *  returns  0; -1 with `error` filled if it is not there, is no folder or has no config.json. */
int hint_check_folder(const char *folder, decoder_error *error);

/* Fill `error` for a folder without model.safetensors and its index, and return -1. */
int hint_missing_weights(const char *folder, decoder_error *error);

/* Fill `error` for a folder without tokenizer.json, and return -1. */
int hint_missing_tokenizer(const char *folder, decoder_error *error);

#endif /* DECODER_FOLDER_HINTS_H */
