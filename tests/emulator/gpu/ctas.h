/* SPDX-License-Identifier: Apache-2.0
 *
 * The CTAs of a launch: those of a cluster at the same time, the clusters one after the other.
 */
#ifndef TESTS_EMULATOR_CTAS_H
#define TESTS_EMULATOR_CTAS_H

#include "ptx_emulated.h"

#include <algorithm>

struct cta_shape {
    int64_t ctas;
    int cluster;                                       /* CTAs of a cluster */
    int threads;                                       /* of a CTA */
    size_t shared_bytes;                               /* that a CTA may write */
    unsigned char (*memories)[CUDA_SM90_SHARED_BYTES]; /* [cluster] */
};

namespace
{

/* The running cluster. */
struct running_cluster {
    const cta_shape *shape;
    const char *what;
    unsigned first; /* index of its first CTA */
    bool begun[FIBERS_CTAS];
} running;

/* Fill bytes of a CTA's memory before it begins and after it ends; at these times no CTA may write
 * there. */
constexpr unsigned char kFound = 0x5a, kLeft = 0xe7;

/* Bytes of a CTA's memory that are checked: its own, and some past the end. */
size_t bytes_watched()
{
    return std::min(running.shape->shared_bytes + 4096, (size_t)CUDA_SM90_SHARED_BYTES);
}

bool holds_only(const unsigned char *from, const unsigned char *to, unsigned char byte)
{
    return std::all_of(from, to, [=](unsigned char found) { return found == byte; });
}

void enter_cta(int cta)
{
    unsigned char *memory_of_it = running.shape->memories[cta];
    blockIdx.x = running.first + (unsigned)cta;
    cta_memory = (unsigned char(*)[])memory_of_it;
    if (!running.begun[cta])
        memset(memory_of_it, kFound, bytes_watched());
    running.begun[cta] = true;
}

void leave_cta(int cta)
{
    unsigned char *own = running.shape->memories[cta];
    if (!holds_only(own + running.shape->shared_bytes, own + bytes_watched(), kFound))
        die("%s: CTA %u: a write past its shared memory", running.what, blockIdx.x);
    memset(own, kLeft, bytes_watched());
}

/* Runs body(argument) in every thread of every CTA, starting with a random cluster. Shared memory
 * starts poisoned. Ends the program if a CTA writes past its shared memory or into that of a CTA
 * that has ended, or if threads deadlock. */
void run_ctas(void (*body)(const void *), const void *argument, const cta_shape &shape,
              uint64_t *random, const char *what)
{
    const unsigned clusters = (unsigned)(shape.ctas / shape.cluster);
    const fibers_shape fibers = {shape.cluster, shape.threads, enter_cta, leave_cta};
    unsigned first = random_below(random, clusters);
    gridDim.x = (unsigned)shape.ctas;
    for (unsigned i = 0; i < clusters; i++) {
        running = {&shape, what, (first + i) % clusters * (unsigned)shape.cluster, {}};
        int left = fibers_run(&fibers, random_bits(random), body, argument);
        if (left > 0)
            die("%s: CTA %u: %d threads wait for ever", what, running.first, left);
        for (int cta = 0; cta < shape.cluster; cta++)
            if (!holds_only(shape.memories[cta], shape.memories[cta] + bytes_watched(), kLeft))
                die("%s: CTA %u: a write after its end", what, running.first + (unsigned)cta);
    }
}

} // namespace

#endif
