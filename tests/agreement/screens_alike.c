/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: screens_alike ISA
 *
 * Compares draws with a screen to draws without one, and the sums of the ISA's integer product to
 * those of plain C. The program needs no test framework, so that cross builds can run it under an
 * emulator.
 */
#include "cpu/cpu_screen_kernel.h"
#include "cpu/host/cpu_dispatch.h"
#include "generated_heads.h"
#include "outcome.h"

#include <stdio.h>
#include <string.h>

static gumbel_isa isa_of(const char *name)
{
    for (int i = GUMBEL_ISA_REFERENCE; i <= GUMBEL_ISA_NEON; i++)
        if (strcmp(name, gumbel_isa_name((gumbel_isa)i)) == 0)
            return (gumbel_isa)i;
    die("%s is no ISA", name);
}

static void check_sums(const cpu_screen_kernel *product, int rows, int64_t columns)
{
    static int32_t own[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    static int32_t plain[CPU_SCREEN_SUMS] __attribute__((aligned(64)));
    int32_t start[2 * CPU_SCREEN_PANEL_MAX] = {0};
    uint64_t random = (uint64_t)columns;
    int8_t *planes = make_zeroed((size_t)(2 * rows * columns), 1);
    uint8_t *copy = make_zeroed((size_t)(64 * columns), 1);
    for (int64_t i = 0; i < 64 * columns; i++)
        copy[i] = (uint8_t)(1 + random_below(&random, 255));
    for (int64_t i = 0; i < 2 * rows * columns; i++) {
        int h = (int)random_below(&random, (uint32_t)product->plane) - product->plane / 2;
        planes[i] = (int8_t)h;
        start[i / 64 % (2 * rows)] -= 128 * h;
    }
    cpu_screen_product call = {copy, columns, planes, rows, start, own};
    product->sum_products(&call);
    call.sums = plain;
    cpu_screen_plain.sum_products(&call);
    if (memcmp(own, plain, (size_t)(4 * 2 * rows * 16) * sizeof *own) != 0)
        die("%s: sums of %d rows and %d columns differ", product->name, rows, (int)columns);
    free(planes);
    free(copy);
}

/* Draws that differ, of some positions and kinds of heads. */
static long count_different(gumbel_device *device, long *drawn)
{
    long different = 0;
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head((head_kind)kind, GUMBEL_BFLOAT16, 700, 96, 5, 3);
        gumbel_screen screen = make_screen(device, &generated.weight);
        uint64_t seed = 1, position = 0;
        float temperature[5] = {0.0f, 0.5f, 1.0f, 3.0f, 100.0f};
        gumbel_sampling how = {.struct_size = sizeof how,
                               .temperature = {temperature, 0},
                               .seed = {&seed, GUMBEL_SAME},
                               .position = {&position, GUMBEL_SAME},
                               .num_samples = 2};
        outcome *ways[2] = {outcome_make(5, 2), outcome_make(5, 2)};
        for (; position < 20; position++) {
            for (int way = 0; way < 2; way++) {
                gumbel_head head = {.struct_size = sizeof head,
                                    .hidden = generated.hidden,
                                    .weight = generated.weight,
                                    .screen = way ? screen : (gumbel_screen){NULL, 0}};
                ways[way]->output.logprobs = ways[way]->output.lse = NULL;
                if (draw(device, &head, &how, ways[way]) != GUMBEL_OK)
                    die("a draw failed");
            }
            for (int i = 0; i < 10; i++)
                different += ways[0]->tokens[i] != ways[1]->tokens[i] ||
                             memcmp(&ways[0]->scores[i], &ways[1]->scores[i], sizeof(float)) != 0;
            *drawn += 10;
        }
        outcome_free(ways[0]);
        outcome_free(ways[1]);
        free(screen.data);
        free_generated_head(&generated);
    }
    return different;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: screens_alike ISA");
    gumbel_isa isa = isa_of(argv[1]);
    if (!gumbel_isa_available(isa)) {
        printf("skipped: %s is not available\n", argv[1]);
        return 77;
    }
    const cpu_screen_kernel *product = cpu_find_screen_kernel(isa);
    for (int rows = 1; rows <= product->panel; rows++)
        check_sums(product, rows, 320);
    gumbel_device *device = open_device(isa, 2, 0);
    long drawn = 0, different = count_different(device, &drawn);
    printf("%s, integer products %s: %ld of %ld draws differ\n", argv[1], product->name, different,
           drawn);
    gumbel_close(device);
    return different != 0;
}
