/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors for files and folders that the decoder does not support: each names the kind of file and a
 * remedy.
 */
#ifndef DECODER_FOLDER_HINTS_H
#define DECODER_FOLDER_HINTS_H

#include <stddef.h>

#include "decoder/error.h"

/* hint_check_bytes(): rejects kinds of files by their first bytes.
 *  returns  0; -1 with `error` filled for a Git LFS pointer, a GGUF file and a zip archive. */
int hint_check_bytes(const char *path, const unsigned char *bytes, size_t size,
                     decoder_error *error);

/* hint_check_folder(): checks that `folder` may be a model folder.
 *  returns  0; -1 with `error` filled if it does not exist, is no folder or has no config.json. */
int hint_check_folder(const char *folder, decoder_error *error);

/* Fills `error` for a folder without model.safetensors and its index; returns -1. */
int hint_missing_weights(const char *folder, decoder_error *error);

/* Fills `error` for a folder without tokenizer.json; returns -1. */
int hint_missing_tokenizer(const char *folder, decoder_error *error);

#endif /* DECODER_FOLDER_HINTS_H */
