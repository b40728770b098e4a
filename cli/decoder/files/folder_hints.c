/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "decoder/files/folder_hints.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "decoder/files/mapping.h"

#define NAME_BYTES 256

static bool begins_with(const unsigned char *bytes, size_t size, const char *prefix)
{
    size_t length = strlen(prefix);
    return size >= length && memcmp(bytes, prefix, length) == 0;
}

int hint_check_bytes(const char *path, const unsigned char *bytes, size_t size,
                     decoder_error *error)
{
    if (begins_with(bytes, size, "version https://git-lfs.github.com/spec/")) {
        return decoder_fail(error, path, NULL,
                            "is a Git LFS pointer, not the file that it stands for; run `git lfs "
                            "pull` in its repository, or download the file");
    }
    if (begins_with(bytes, size, "GGUF")) {
        return decoder_fail(error, path, NULL,
                            "is a GGUF file, which is not supported; give the model in Hugging "
                            "Face format, a folder with config.json, safetensors and "
                            "tokenizer.json");
    }
    /* In the length at the start of a safetensors file, zeros would follow these bytes. */
    if (begins_with(bytes, size, "PK\x03\x04") && size >= 8 &&
        memcmp(bytes + 4, "\0\0\0", 4) != 0) {
        return decoder_fail(error, path, NULL,
                            "is a zip archive (.npz, or weights of PyTorch), which is not "
                            "supported; save the tensor as .safetensors or .npy");
    }
    return 0;
}

/* ------------------------------------------------------------------------------ folders ---- */

/* The first entry of a folder, alphabetically, whose name ends in `suffix`. */
static bool find_entry(const char *folder, const char *suffix, char name[NAME_BYTES])
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    bool found = false;
    if (!entries) {
        return false;
    }
    while ((entry = readdir(entries))) {
        size_t length = strlen(entry->d_name), tail = strlen(suffix);
        bool ends = length >= tail && strcmp(entry->d_name + length - tail, suffix) == 0;
        if (ends && length < NAME_BYTES && (!found || strcmp(entry->d_name, name) < 0)) {
            memcpy(name, entry->d_name, length + 1);
            found = true;
        }
    }
    closedir(entries);
    return found;
}

static bool has_entry(const char *folder, const char *name)
{
    char path[4096];
    struct stat status;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof path && stat(path, &status) == 0;
}

/* True if a name has the form OWNER/MODEL. */
static bool is_hub_id(const char *name)
{
    const char *slash = strchr(name, '/');
    if (!slash || slash == name || !slash[1] || name[0] == '.' || name[0] == '~') {
        return false;
    }
    for (const char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c) && c != slash) {
            return false;
        }
    }
    return true;
}

static int fail_absent(const char *folder, int reason, decoder_error *error)
{
    if (reason == ENOENT && is_hub_id(folder)) {
        return decoder_fail(error, folder, NULL,
                            "no such folder; if it is a model id of the Hugging Face hub, download "
                            "the model, as by `hf download %s --local-dir %s`, and give its folder",
                            folder, strchr(folder, '/') + 1);
    }
    return decoder_fail(error, folder, NULL, "%s", strerror(reason));
}

static int fail_file(const char *path, decoder_error *error)
{
    file_mapping mapping;
    if (file_map(path, &mapping, error) != 0) {
        return -1;
    }
    file_unmap(&mapping);
    return decoder_fail(error, path, NULL,
                        "is a file; give the folder that holds config.json, the weights and "
                        "tokenizer.json");
}

int hint_check_folder(const char *folder, decoder_error *error)
{
    char name[NAME_BYTES];
    struct stat status;
    if (stat(folder, &status) != 0) {
        return fail_absent(folder, errno, error);
    }
    if (!S_ISDIR(status.st_mode)) {
        return fail_file(folder, error);
    }
    if (has_entry(folder, "config.json")) {
        return 0;
    }
    if (has_entry(folder, "snapshots")) {
        return decoder_fail(error, folder, NULL,
                            "is a folder of the Hugging Face cache; give the model's folder below "
                            "its snapshots/");
    }
    if (has_entry(folder, "adapter_config.json")) {
        return decoder_fail(error, folder, "adapter_config.json",
                            "the folder holds an adapter; merge it into its base model, and give "
                            "the folder of the merged model");
    }
    if (find_entry(folder, ".gguf", name)) {
        return decoder_fail(error, folder, name,
                            "GGUF is not supported; give the model in Hugging Face format, a "
                            "folder with config.json, safetensors and tokenizer.json");
    }
    return decoder_fail(error, folder, "config.json",
                        "is missing; give a model folder in Hugging Face format");
}

int hint_missing_weights(const char *folder, decoder_error *error)
{
    char name[NAME_BYTES];
    if (has_entry(folder, "model.safetensors")) {
        return decoder_fail(error, folder, "model.safetensors", "cannot be read");
    }
    if (find_entry(folder, ".bin", name) || find_entry(folder, ".bin.index.json", name)) {
        return decoder_fail(error, folder, name,
                            "weights of this format are not supported; save them as safetensors, "
                            "by transformers' save_pretrained()");
    }
    if (find_entry(folder, ".gguf", name)) {
        return decoder_fail(error, folder, name,
                            "GGUF is not supported; the folder needs the weights as safetensors");
    }
    return decoder_fail(error, folder, "model.safetensors",
                        "is missing, and so is model.safetensors.index.json; download all files "
                        "of the model");
}

int hint_missing_tokenizer(const char *folder, decoder_error *error)
{
    if (has_entry(folder, "tokenizer.json")) {
        return decoder_fail(error, folder, "tokenizer.json", "cannot be read");
    }
    bool other = has_entry(folder, "tokenizer.model") || has_entry(folder, "vocab.json");
    return decoder_fail(error, folder, "tokenizer.json", "is missing; %s",
                        other ? "transformers writes it from the tokenizer files of this folder: "
                                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                              : "download all files of the model");
}
