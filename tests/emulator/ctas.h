/* SPDX-License-Identifier: Apache-2.0
 *
 * The CTAs of a launch, one after the other.
 */
#ifndef TESTS_EMULATOR_CTAS_H
#define TESTS_EMULATOR_CTAS_H

#include "ptx_words.h"

struct cta_shape {
    int64_t ctas;
    int threads;         /* of a CTA */
    size_t shared_bytes; /* that a CTA may change */
};

/* Run body(argument) by every thread of every CTA, from a random CTA on. Each finds poison in
 * shared memory. Ends the program where one writes past what it has of it, or where threads wait
 * for ever. */
static inline void run_ctas(void (*body)(const void *), const void *argument, cta_shape shape,
                            uint64_t *random, const char *what)
{
    constexpr unsigned char poison = 0x5a;
    unsigned first = random_below(random, (uint32_t)shape.ctas);
    gridDim.x = (unsigned)shape.ctas;
    for (unsigned i = 0; i < gridDim.x; i++) {
        blockIdx.x = (first + i) % gridDim.x;
        memset(memory, poison, sizeof memory);
        int left = fibers_run(shape.threads, random_bits(random), body, argument);
        if (left > 0)
            die("%s: CTA %u: %d threads wait for ever", what, blockIdx.x, left);
        for (size_t at = shape.shared_bytes; at < sizeof memory; at++)
            if (memory[at] != poison)
                die("%s: CTA %u: a write past its shared memory", what, blockIdx.x);
    }
}

#endif
