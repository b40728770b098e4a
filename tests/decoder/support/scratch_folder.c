/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "scratch_folder.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "decoder/files/mapping.h"

int scratch_set_up(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/gumbel-test-XXXXXX", base ? base : "/tmp");
    *state = mkdtemp(path) ? strdup(path) : NULL;
    return *state ? 0 : -1;
}

int scratch_tear_down(void **state)
{
    DIR *folder = opendir(*state);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unlink(scratch_path(*state, entry->d_name));
    }
    closedir(folder);
    int result = rmdir(*state);
    free(*state);
    return result;
}

const char *scratch_path(const char *folder, const char *name)
{
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *scratch_write(const char *folder, const char *name, const void *bytes, size_t size)
{
    const char *path = scratch_path(folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}

const char *scratch_write_text(const char *folder, const char *name, const char *text)
{
    return scratch_write(folder, name, text, strlen(text));
}

const char *scratch_copy(const char *folder, const char *name, const char *from)
{
    file_mapping mapping;
    assert_int_equal(file_map(from, &mapping, NULL), 0);
    const char *path = scratch_write(folder, name, mapping.data, mapping.size);
    file_unmap(&mapping);
    return path;
}
