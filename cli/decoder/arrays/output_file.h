/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are written whole or not at all. A regular file is made beside its place, without a
 * name where the filesystem can do that, and takes the name once it is complete; an older one keeps
 * its mode. Links are followed and stay. What is no regular file, a device or a FIFO, is written
 * into.
 */
#ifndef DECODER_OUTPUT_FILE_H
#define DECODER_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "decoder/error.h"

/* What a name leads to. */
typedef struct output_place {
    char *path;       /* of the file itself, behind all links */
    struct stat stat; /* of the file; of its folder where there is none yet */
    bool exists;
    bool in_place; /* written into, not replaced */
} output_place;

/* output_place_find(): where what is written to `name` goes; nothing is changed.
 *  place    receives it; release it with output_place_clear(), on error too.
 *  returns  0; -1 with `error` filled where it cannot be written, as far as can be seen. */
int output_place_find(const char *name, output_place *place, decoder_error *error);
void output_place_clear(output_place *place);

/* The place of stdout, to compare with others. */
output_place output_place_of_stdout(void);

/* Whether of two things written there one after the other the first would be lost or spoilt. A
 * terminal and /dev/null take any number. */
bool output_places_clash(const output_place *a, const output_place *b);

/* A file in the making. */
typedef struct output_file {
    output_place place;
    int descriptor;
    char temporary[4096]; /* its name until then; "": it has none */
} output_file;

/* output_open(): begin a file that will be `name`. One at a time in a process: until its end
 * SIGINT, SIGTERM and SIGHUP wait, so that nothing is left beside it.
 *  returns  0, and output_commit() or output_abandon() must follow; -1 with `error` filled. */
int output_open(const char *name, output_file *file, decoder_error *error);

/* Append bytes. -1 with errno set, EINTR where a signal waits. */
int output_write(output_file *file, const void *bytes, size_t size);

/* output_commit(): make it appear. 0; -1 with errno set and nothing left behind. */
int output_commit(output_file *file);

/* End a file that will not be; errno stays. */
void output_abandon(output_file *file);

#endif /* DECODER_OUTPUT_FILE_H */
