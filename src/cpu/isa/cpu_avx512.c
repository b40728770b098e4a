/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/isa/lanes_avx512.h"

/* 32 registers: up to 24 accumulators and 8 for weights and operands. */
#define PRODUCT_ROWS(batch) ((batch) <= 2 ? 4 : (batch) <= 4 ? 6 : (batch) <= 6 ? 4 : 3)

#define PRODUCT_PANEL 8

#include "cpu/lanes/noise_lanes.h"
#include "cpu/lanes/product_lanes.h"
#include "cpu/lanes/screen_lanes.h"
#include "cpu/lanes/program_lanes.h"

const cpu_kernels cpu_avx512_kernels = CPU_KERNELS(GUMBEL_ISA_AVX512, PRODUCT_PANEL);
