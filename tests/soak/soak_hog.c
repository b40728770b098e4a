/* SPDX-License-Identifier: Apache-2.0 */
#include "soak_hog.h"

#include <string.h>

/* The assembler puts in what nvcc made of soak_hog.cu. */
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "soak_hog_image:\n"
        ".incbin \"" SOAK_HOG_IMAGE "\"\n"
        ".popsection\n");
extern const unsigned char soak_hog_image[];

enum { CTAS_MAX = 1023 };

/* In host memory that the GPU sees. */
typedef struct hog_words {
    uint32_t released, begun[CTAS_MAX];
} hog_words;

static struct {
    CUmodule module;
    CUfunction hold, release;
    CUstream streams[HOGS];
    volatile hog_words *words; /* [HOGS] */
    int ctas[HOGS], multiprocessors, shared_bytes;
} hogs;

void hogs_open(void)
{
    void *words;
    GPU(cuDeviceGetAttribute, &hogs.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    GPU(cuDeviceGetAttribute, &hogs.shared_bytes,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0);
    if (hogs.multiprocessors > CTAS_MAX)
        die("a GPU of %d multiprocessors is not provided for", hogs.multiprocessors);
    GPU(cuModuleLoadData, &hogs.module, soak_hog_image);
    GPU(cuModuleGetFunction, &hogs.hold, hogs.module, "soak_hog");
    GPU(cuModuleGetFunction, &hogs.release, hogs.module, "soak_release");
    GPU(cuFuncSetAttribute, hogs.hold, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        hogs.shared_bytes);
    GPU(cuMemHostAlloc, &words, HOGS * sizeof *hogs.words,
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    memset(words, 0, HOGS * sizeof *hogs.words);
    hogs.words = words;
    for (int i = 0; i < HOGS; i++)
        GPU(cuStreamCreate, &hogs.streams[i], CU_STREAM_NON_BLOCKING);
    /* Kernels are loaded at their first launch, which may wait for what runs. */
    for (int i = 0; i < HOGS; i++) {
        hog_queue(i, 1, 0, 1e-6, 1e-6);
        hog_release_queue(i, hogs.streams[i]);
        GPU(cuStreamSynchronize, hogs.streams[i]);
    }
}

void hogs_close(void)
{
    for (int i = 0; i < HOGS; i++) {
        hog_release(i);
        GPU(cuStreamSynchronize, hogs.streams[i]);
        GPU(cuStreamDestroy, hogs.streams[i]);
    }
    GPU(cuMemFreeHost, (void *)(uintptr_t)hogs.words);
    GPU(cuModuleUnload, hogs.module);
}

int hogs_most(void) { return hogs.multiprocessors; }

void hog_queue(int hog, int ctas, uint64_t seed, double least, double most)
{
    volatile hog_words *words = &hogs.words[hog];
    CUdeviceptr released = (CUdeviceptr)(uintptr_t)&words->released;
    CUdeviceptr begun = (CUdeviceptr)(uintptr_t)words->begun;
    uint64_t shortest = (uint64_t)(1e9 * least), longest = (uint64_t)(1e9 * most);
    void *arguments[] = {&released, &begun, &seed, &shortest, &longest};
    words->released = 0;
    for (int i = 0; i < CTAS_MAX; i++)
        words->begun[i] = 0;
    hogs.ctas[hog] = ctas;
    GPU(cuLaunchKernel, hogs.hold, (unsigned)ctas, 1, 1, 32, 1, 1, (unsigned)hogs.shared_bytes,
        hogs.streams[hog], arguments, NULL);
}

void hog_release(int hog) { hogs.words[hog].released = 1; }

void hog_release_queue(int hog, CUstream stream)
{
    CUdeviceptr released = (CUdeviceptr)(uintptr_t)&hogs.words[hog].released;
    void *arguments[] = {&released};
    GPU(cuLaunchKernel, hogs.release, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

int hog_begun(int hog)
{
    int begun = 0;
    for (int i = 0; i < hogs.ctas[hog]; i++)
        begun += hogs.words[hog].begun[i] != 0;
    return begun;
}

int hog_runs(int hog) { return gpu_runs(hogs.streams[hog]); }
