/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are written completely or not at all. A regular file is created beside its
 * destination, unnamed if the filesystem supports that, and renamed when complete; a replaced
 * file's mode is kept. Links are followed. Devices and FIFOs are written in place.
 */
#ifndef DECODER_OUTPUT_FILE_H
#define DECODER_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "decoder/error.h"

/* The destination of a name. */
typedef struct output_place {
    char *path;       /* of the file, with links resolved */
    struct stat stat; /* of the file, or of its folder if the file does not exist */
    bool exists;
    bool in_place; /* written into, not replaced */
} output_place;

/* output_place_find(): resolves `name`; changes no file.
 *  place    receives the destination; release it with output_place_clear(), also after an error.
 *  returns  0; -1 with `error` filled if it visibly cannot be written. */
int output_place_find(const char *name, output_place *place, decoder_error *error);
void output_place_clear(output_place *place);

/* The destination of stdout, for output_places_conflict(). */
output_place output_place_of_stdout(void);

/* True if the second of two outputs would damage the first. A terminal and /dev/null take
 * several. */
bool output_places_conflict(const output_place *a, const output_place *b);

/* A file being written. */
typedef struct output_file {
    output_place place;
    int descriptor;
    char temporary[4096]; /* its temporary name; "": unnamed */
} output_file;

/* output_open(): begins a file that will be `name`. One file at a time in a process: SIGINT,
 * SIGTERM and SIGHUP are held until its end, so that no temporary file remains.
 *  returns  0, and output_commit() or output_abandon() must follow; -1 with `error` filled. */
int output_open(const char *name, output_file *file, decoder_error *error);

/* Appends bytes. -1 with errno set, EINTR if a signal is held. */
int output_write(output_file *file, const void *bytes, size_t size);

/* output_commit(): completes the file. Returns 0; -1 with errno set and no file. */
int output_commit(output_file *file);

/* Discards the file; keeps errno. */
void output_abandon(output_file *file);

#endif /* DECODER_OUTPUT_FILE_H */
