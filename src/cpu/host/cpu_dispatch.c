/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cpu/host/cpu_dispatch.h"

#include <stdio.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The compiler's run-time tests read CPUID and whether the operating system saves the registers. */
static int supports_isa(gumbel_isa isa)
{
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2) {
        unsigned a, b, c, d;
        avx2 = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    }
    if (isa == GUMBEL_ISA_AVX2)
        return avx2;
    return isa == GUMBEL_ISA_AVX512 && avx2 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static const cpu_kernels *const fast_kernels[] = {&cpu_avx512_kernels, &cpu_avx2_kernels, NULL};

#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <asm/hwcap.h>

/* Advanced SIMD is part of the architecture. */
static int supports_isa(gumbel_isa isa) { return isa == GUMBEL_ISA_NEON; }

static const cpu_kernels *const fast_kernels[] = {&cpu_neon_kernels, NULL};

#else

static int supports_isa(gumbel_isa isa)
{
    (void)isa;
    return 0;
}

static const cpu_kernels *const fast_kernels[] = {NULL};

#endif

const cpu_kernels *cpu_find_kernels(gumbel_isa isa)
{
    if (isa == GUMBEL_ISA_REFERENCE)
        return &cpu_reference_kernels;
    for (const cpu_kernels *const *k = fast_kernels; *k; k++)
        if ((*k)->isa == isa && supports_isa(isa))
            return *k;
    return NULL;
}

const cpu_kernels *cpu_find_fastest_kernels(void)
{
    for (const cpu_kernels *const *k = fast_kernels; *k; k++)
        if (supports_isa((*k)->isa))
            return *k;
    return &cpu_reference_kernels;
}

#if defined(__x86_64__)

/* Whether the processor has AMX for bytes, and Linux permits this process to use it. */
static int supports_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx = 1u << 24 | 1u << 25;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx) == amx &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

const cpu_screen_kernel *cpu_find_screen_kernel(gumbel_isa isa)
{
    if (isa == GUMBEL_ISA_AVX512 && supports_amx())
        return &cpu_screen_amx;
    if (isa == GUMBEL_ISA_AVX512 && __builtin_cpu_supports("avx512vnni"))
        return &cpu_screen_vnni;
    return isa == GUMBEL_ISA_REFERENCE ? &cpu_screen_plain : &cpu_screen_avx2;
}

/* AMX has no way to unpack nibbles; the batches that gain by them are small enough for VNNI. */
const cpu_screen_kernel *cpu_find_nibble_kernel(gumbel_isa isa)
{
    if (isa == GUMBEL_ISA_AVX512 && __builtin_cpu_supports("avx512vnni"))
        return &cpu_nibbles_vnni;
    return isa == GUMBEL_ISA_REFERENCE ? &cpu_nibbles_plain : &cpu_nibbles_avx2;
}

#elif defined(__aarch64__)

static int supports_dot(gumbel_isa isa)
{
    return isa == GUMBEL_ISA_NEON && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

const cpu_screen_kernel *cpu_find_screen_kernel(gumbel_isa isa)
{
    return supports_dot(isa) ? &cpu_screen_dot : &cpu_screen_plain;
}

const cpu_screen_kernel *cpu_find_nibble_kernel(gumbel_isa isa)
{
    return supports_dot(isa) ? &cpu_nibbles_dot : &cpu_nibbles_plain;
}

#else

const cpu_screen_kernel *cpu_find_screen_kernel(gumbel_isa isa)
{
    (void)isa;
    return &cpu_screen_plain;
}

const cpu_screen_kernel *cpu_find_nibble_kernel(gumbel_isa isa)
{
    (void)isa;
    return &cpu_nibbles_plain;
}

#endif

void cpu_describe_processor(char *text, size_t size)
{
    text[0] = '\0';
#if defined(__x86_64__)
    unsigned brand[12], most = __get_cpuid_max(0x80000000u, NULL);
    if (most < 0x80000004u)
        return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &brand[4 * i], &brand[4 * i + 1], &brand[4 * i + 2],
                    &brand[4 * i + 3]);
    snprintf(text, size, "%.48s", (const char *)brand);
#elif defined(__aarch64__)
    snprintf(text, size, "AArch64");
#else
    (void)size;
#endif
}

int gumbel_isa_available(gumbel_isa isa) { return cpu_find_kernels(isa) != NULL; }
