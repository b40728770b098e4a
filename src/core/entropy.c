/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "core/entropy.h"

#include <errno.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#else
#include <sys/random.h>
#endif

/* One request of at most 256 bytes, which no signal shortens. */
static int read_chunk(void *to, size_t bytes)
{
#ifdef __linux__
    /* The wrapper getrandom() needs glibc 2.25; the wheels support 2.17. */
    long got;
    do
        got = syscall(SYS_getrandom, to, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got == (long)bytes;
#else
    return getentropy(to, bytes) == 0;
#endif
}

int gumbel_read_entropy(void *to, size_t bytes)
{
    char *at = to;
    for (size_t chunk; bytes > 0; bytes -= chunk, at += chunk) {
        chunk = bytes < 256 ? bytes : 256;
        if (!read_chunk(at, chunk))
            return 0;
    }
    return 1;
}
