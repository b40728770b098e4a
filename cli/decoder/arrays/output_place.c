/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/arrays/output_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINKS_MAX = 40 }; /* as in Linux */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* stat() of the folder of `path`, in which a file can be created and renamed; -1 with errno set. */
static int check_folder(const char *path, struct stat *found)
{
    const size_t length = (size_t)(base_name(path) - path);
    char *folder = length ? strndup(path, length) : strdup(".");
    int result = folder && stat(folder, found) == 0 ? access(folder, W_OK | X_OK) : -1;
    const int reason = errno;
    free(folder);
    errno = reason;
    return result;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Resolves the name of an existing file. */
static int find_existing(const char *name, output_place *place)
{
    struct stat folder, behind, own;
    place->exists = true;
    if (S_ISDIR(place->stat.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    if (access(name, W_OK) != 0) {
        return -1;
    }
    place->path = realpath(name, NULL);
    /* A deleted file that is still open can be written but not replaced. */
    place->in_place = !S_ISREG(place->stat.st_mode) || !place->path ||
                      stat(place->path, &behind) != 0 || !same_file(&place->stat, &behind) ||
                      (fstat(STDOUT_FILENO, &own) == 0 && same_file(&place->stat, &own));
    if (place->in_place) {
        free(place->path);
        place->path = strdup(name);
        return place->path ? 0 : -1;
    }
    return check_folder(place->path, &folder);
}

/* Replaces the last part of a path by the target of the link of that name; -1 if it is no link. */
static int follow_link(char path[PATH_MAX])
{
    char target[PATH_MAX];
    const ssize_t size = readlink(path, target, sizeof target - 1);
    if (size < 0) {
        return -1;
    }
    target[size] = '\0';
    char *end = target[0] == '/' ? path : path + (base_name(path) - path);
    if ((size_t)size >= (size_t)(path + PATH_MAX - end)) {
        return -1;
    }
    memcpy(end, target, (size_t)size + 1);
    return 0;
}

/* Resolves the name of a file that does not exist, possibly through links. */
static int find_new(const char *name, output_place *place)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s", name) >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (int i = 0; i < LINKS_MAX && follow_link(path) == 0; i++) {
    }
    if (!*base_name(path)) {
        errno = *path ? EISDIR : ENOENT;
        return -1;
    }
    place->path = strdup(path);
    return place->path ? check_folder(path, &place->stat) : -1;
}

int output_place_find(const char *name, output_place *place, decoder_error *error)
{
    *place = (output_place){.path = NULL};
    int result = -1;
    if (stat(name, &place->stat) == 0) {
        result = find_existing(name, place);
    } else if (errno == ENOENT) {
        result = find_new(name, place);
    }
    if (result != 0) {
        decoder_fail(error, name, NULL, "cannot be written: %s", strerror(errno));
    }
    return result;
}

void output_place_clear(output_place *place)
{
    free(place->path);
    place->path = NULL;
}

output_place output_place_of_stdout(void)
{
    output_place place = {.in_place = true};
    place.exists = fstat(STDOUT_FILENO, &place.stat) == 0;
    return place;
}

bool output_places_clash(const output_place *a, const output_place *b)
{
    if (a->exists != b->exists || !same_file(&a->stat, &b->stat)) {
        return false;
    }
    return a->exists ? !S_ISCHR(a->stat.st_mode)
                     : strcmp(base_name(a->path), base_name(b->path)) == 0;
}
