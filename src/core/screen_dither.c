/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "core/screen_dither.h"

#include "core/fail.h"

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

/* Fills `to` with bytes that nobody can predict. Returns 0 if the system provides none. Does not
 * wait, except for a system that is still booting. */
static int read_entropy(void *to, size_t bytes)
{
    char *at = to;
    for (size_t chunk; bytes > 0; bytes -= chunk, at += chunk) {
        chunk = bytes < 256 ? bytes : 256;
        if (!read_chunk(at, chunk))
            return 0;
    }
    return 1;
}

gumbel_status gumbel_make_dither(gumbel_screen_layout layout, const uint64_t *seed, int64_t first,
                                 int64_t count, int32_t *dither, gumbel_error *error)
{
    const int nested = gumbel_screen_is_nested(layout);
    if (seed) {
        if (nested)
            gumbel_screen_seed_columns(*seed, first, count, (gumbel_screen_column *)dither);
        else
            gumbel_screen_seed_dither(*seed, first, count, dither);
        return GUMBEL_OK;
    }
    if (!read_entropy(dither, (size_t)count * sizeof *dither))
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "options.seed",
                           "the operating system gave no random bytes: give a seed");
    for (int64_t i = 0; i < count; i++)
        dither[i] = nested ? dither[i] & ~(GUMBEL_SCREEN_SCALES - 1)
                           : gumbel_screen_dither_of((uint32_t)dither[i]);
    return GUMBEL_OK;
}
