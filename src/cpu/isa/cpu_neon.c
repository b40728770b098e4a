/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/isa/lanes_neon.h"

/* 32 registers of 4 lanes: 6 accumulators of 16 lanes, and 8 for weights and operands. */
#define PRODUCT_ROWS(batch) ((batch) == 1 ? 4 : (batch) == 2 ? 3 : (batch) == 3 ? 2 : 1)

#define PRODUCT_PANEL 3

#include "cpu/lanes/noise_lanes.h"
#include "cpu/lanes/product_lanes.h"
#include "cpu/lanes/screen_lanes.h"
#include "cpu/lanes/truncate_lanes.h"

const cpu_kernels cpu_neon_kernels = {
    .isa = GUMBEL_ISA_NEON,
    .panel = PRODUCT_PANEL,
    .product = product,
    .transform = transform,
    .mask = mask,
    .draw = draw,
    .noise = noise,
    .survey = survey,
    .weigh = weigh,
    .tally = tally,
    .keep = keep,
    .count_above = count_above,
    .exponentiate = exponentiate,
    .multiply = multiply,
    .screen_rows = screen_rows,
    .screen_ends = screen_ends,
};
