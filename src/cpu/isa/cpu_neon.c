/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/isa/lanes_neon.h"

/* 32 registers of 4 lanes: 6 accumulators of 16 lanes, and 8 registers for weights and operands. */
#define PRODUCT_ROWS(batch) ((batch) == 1 ? 4 : (batch) == 2 ? 3 : (batch) == 3 ? 2 : 1)

#define PRODUCT_PANEL 3

#include "cpu/lanes/noise_lanes.h"
#include "cpu/lanes/product_lanes.h"
#include "cpu/lanes/screen_lanes.h"
#include "cpu/lanes/program_lanes.h"

const cpu_kernels cpu_neon_kernels = CPU_KERNELS(GUMBEL_ISA_NEON, PRODUCT_PANEL);
