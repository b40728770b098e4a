/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/arrays/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder/arrays/output_signals.h"

/* An unnamed file is linked by its path here; without /proc, files are named from the start. */
#define OWN_DESCRIPTORS "/proc/self/fd"

static int open_unnamed(const char *folder)
{
    if (access(OWN_DESCRIPTORS, X_OK) != 0) {
        return -1;
    }
    return open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

static int link_unnamed(int descriptor, const char *path)
{
    char own[sizeof OWN_DESCRIPTORS + 16];
    snprintf(own, sizeof own, OWN_DESCRIPTORS "/%d", descriptor);
    return linkat(AT_FDCWD, own, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

/* Length of the folder in a path, including its last slash; 0: none. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Gives the file a temporary name in its folder: links an unnamed file, or creates one. */
static int name_temporary(output_file *file)
{
    const char *path = file->place.path;
    for (int i = 0; i < 1000; i++) {
        int length = snprintf(file->temporary, sizeof file->temporary, "%.*s.gumbel-%ld-%d",
                              (int)folder_length(path), path, (long)getpid(), i);
        if (length >= (int)sizeof file->temporary) {
            errno = ENAMETOOLONG;
            break;
        }
        if (file->descriptor >= 0) {
            if (link_unnamed(file->descriptor, file->temporary) == 0) {
                return 0;
            }
        } else {
            file->descriptor = open(file->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
            if (file->descriptor >= 0) {
                return 0;
            }
        }
        if (errno != EEXIST) {
            break;
        }
    }
    file->temporary[0] = '\0';
    return -1;
}

/* Copies the mode, and the owner if the user may. */
static int keep_mode(int descriptor, const struct stat *old)
{
    const bool kept = fchown(descriptor, old->st_uid, old->st_gid) == 0 ||
                      fchown(descriptor, (uid_t)-1, old->st_gid) == 0;
    (void)kept;
    return fchmod(descriptor, old->st_mode & 0777);
}

static int open_beside(output_file *file)
{
    const size_t length = folder_length(file->place.path);
    char *folder = length ? strndup(file->place.path, length) : strdup(".");
    if (!folder) {
        return -1;
    }
    file->descriptor = open_unnamed(folder);
    free(folder);
    if (file->descriptor < 0 && name_temporary(file) != 0) {
        return -1;
    }
    return file->place.exists ? keep_mode(file->descriptor, &file->place.stat) : 0;
}

static bool is_stdout(const struct stat *found)
{
    struct stat own;
    return fstat(STDOUT_FILENO, &own) == 0 && own.st_dev == found->st_dev &&
           own.st_ino == found->st_ino;
}

/* The descriptor of stdout keeps its position. */
static int open_in_place(const output_place *place)
{
    if (is_stdout(&place->stat)) {
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    }
    const int truncate = S_ISREG(place->stat.st_mode) ? O_TRUNC : 0;
    return open(place->path, O_WRONLY | O_CLOEXEC | O_NOCTTY | truncate);
}

int output_open(const char *name, output_file *file, decoder_error *error)
{
    *file = (output_file){.descriptor = -1};
    if (output_place_find(name, &file->place, error) != 0) {
        output_place_clear(&file->place);
        return -1;
    }
    if (file->place.in_place) {
        file->descriptor = open_in_place(&file->place);
        if (file->descriptor >= 0) {
            return 0;
        }
    } else {
        output_signals_hold();
        if (open_beside(file) == 0) {
            return 0;
        }
    }
    decoder_fail(error, name, NULL, "cannot be written: %s", strerror(errno));
    output_abandon(file);
    return -1;
}

int output_write(output_file *file, const void *bytes, size_t size)
{
    enum { AT_ONCE_MAX = 1 << 23 }; /* limits the delay of a signal */
    const char *at = bytes;
    while (size > 0) {
        if (output_signals_waiting()) {
            errno = EINTR;
            return -1;
        }
        ssize_t written = write(file->descriptor, at, size < AT_ONCE_MAX ? size : AT_ONCE_MAX);
        if (written < 0 && errno != EINTR) {
            return -1;
        }
        if (written > 0) {
            at += written;
            size -= (size_t)written;
        }
    }
    return 0;
}

/* Links a new file; replaces an existing file by rename(), which requires a temporary name. */
static int link_or_rename(output_file *file)
{
    const char *path = file->place.path;
    if (!file->temporary[0]) {
        if (!file->place.exists && link_unnamed(file->descriptor, path) == 0) {
            return 0;
        }
        if ((!file->place.exists && errno != EEXIST) || name_temporary(file) != 0) {
            return -1;
        }
    }
    const int descriptor = file->descriptor;
    file->descriptor = -1;
    if (close(descriptor) != 0 || rename(file->temporary, path) != 0) {
        return -1;
    }
    file->temporary[0] = '\0';
    return 0;
}

int output_commit(output_file *file)
{
    int result = file->place.in_place ? 0 : link_or_rename(file);
    if (result == 0 && file->descriptor >= 0) {
        result = close(file->descriptor);
        file->descriptor = -1;
    }
    output_abandon(file);
    return result;
}

void output_abandon(output_file *file)
{
    const int reason = errno;
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    if (file->temporary[0]) {
        unlink(file->temporary);
    }
    if (!file->place.in_place) {
        output_signals_release();
    }
    output_place_clear(&file->place);
    errno = reason;
}
