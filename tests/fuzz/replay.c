/* SPDX-License-Identifier: Apache-2.0
 *
 * A main() for fuzz targets on machines without libFuzzer: runs the target on every file of a
 * folder, and on mutations of each that are the same on every machine.
 *
 * usage: TARGET FOLDER [MUTATIONS]
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/files/mapping.h"
#include "fuzz_target.h"

#define DEFAULT_MUTATIONS 1500
#define EDITS_MAX         4

typedef struct corpus {
    file_mapping *files;
    int count;
} corpus;

static uint64_t random_state = 1;

/* A random number below `bound` > 0, by SplitMix64. */
static size_t random_below(size_t bound)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (size_t)((x ^ x >> 31) % bound);
}

/* Makes one random edit of bytes[size], in a buffer of 2 * size bytes; returns the new size. */
static size_t edit_bytes(unsigned char *bytes, size_t size, const corpus *c)
{
    static const unsigned char special_bytes[] = "\0\xff\x7f\x80\"\\[]{},:-0919e'() \n";
    size_t at = size > 0 ? random_below(size) : 0;
    if (size == 0) {
        return 0;
    }
    switch (random_below(5)) {
    case 0:
        bytes[at] ^= (unsigned char)(1u << random_below(8));
        return size;
    case 1:
        bytes[at] = special_bytes[random_below(sizeof special_bytes - 1)];
        return size;
    case 2:
        return at;
    case 3: { /* delete a range */
        size_t length = 1 + random_below(size - at < 16 ? size - at : 16);
        memmove(bytes + at, bytes + at + length, size - at - length);
        return size - length;
    }
    default: { /* splice: continue with the end of another file */
        const file_mapping *other = &c->files[random_below((size_t)c->count)];
        size_t from = other->size > 0 ? random_below(other->size) : 0;
        size_t length = other->size - from < size ? other->size - from : size;
        memcpy(bytes + at, other->data + from, length);
        return at + length;
    }
    }
}

/* Runs the target on a heap copy of exactly `size` bytes, so that sanitizers detect an overread. */
static void run_target(const unsigned char *bytes, size_t size)
{
    unsigned char *copy = malloc(size > 0 ? size : 1);
    if (!copy) {
        abort();
    }
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void run_mutations(const corpus *c, const file_mapping *file, long count)
{
    unsigned char *bytes = malloc(2 * file->size * (1u << EDITS_MAX) + 1);
    if (!bytes) {
        abort();
    }
    for (long i = 0; i < count; i++) {
        size_t size = file->size;
        memcpy(bytes, file->data, size);
        for (size_t edits = 1 + random_below(EDITS_MAX); edits > 0; edits--) {
            size = edit_bytes(bytes, size, c);
        }
        run_target(bytes, size);
    }
    free(bytes);
}

/* Reads the files of a folder, sorted by name, so that mutations do not depend on readdir order.
 * Returns how many there are. */
static int read_corpus(const char *folder, corpus *c)
{
    struct dirent **entries;
    int found = scandir(folder, &entries, NULL, alphasort);
    c->count = 0;
    c->files = calloc(found > 0 ? (size_t)found : 1, sizeof *c->files);
    for (int i = 0; i < found; i++) {
        char *path = path_join(folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && file_map(path, &c->files[c->count], NULL) == 0) {
            c->count++;
        }
        free(path);
        free(entries[i]);
    }
    free(found >= 0 ? entries : NULL);
    return c->count;
}

int main(int argc, char **argv)
{
    corpus c;
    if (argc < 2 || read_corpus(argv[1], &c) == 0) {
        fprintf(stderr, "usage: %s FOLDER [MUTATIONS], and files in the folder\n", argv[0]);
        return 2;
    }
    long mutations = argc > 2 ? atol(argv[2]) : DEFAULT_MUTATIONS;
    for (int i = 0; i < c.count; i++) {
        run_target(c.files[i].data, c.files[i].size);
        run_mutations(&c, &c.files[i], mutations);
    }
    printf("%d files, %ld mutations of each\n", c.count, mutations);
    for (int i = 0; i < c.count; i++) {
        file_unmap(&c.files[i]);
    }
    free(c.files);
    return 0;
}
