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
#include "screen_sums.h"

#include <stdio.h>
#include <string.h>

static gumbel_isa isa_of(const char *name)
{
    for (int i = GUMBEL_ISA_REFERENCE; i <= GUMBEL_ISA_NEON; i++)
        if (strcmp(name, gumbel_isa_name((gumbel_isa)i)) == 0)
            return (gumbel_isa)i;
    die("%s is no ISA", name);
}

static void check_sums(const cpu_screen_kernel *product, const cpu_screen_kernel *plain)
{
    for (int rows = 1; rows <= product->panel; rows++)
        if (!is_product_equal(product, plain, rows, 320, 0))
            die("%s: sums of %d rows differ", product->name, rows);
}

/* Draws that differ, of some positions and kinds of heads. */
static long count_different(gumbel_device *device, gumbel_screen_format format, long *drawn)
{
    long different = 0;
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head((head_kind)kind, GUMBEL_BFLOAT16, 700, 96, 5, 3);
        gumbel_screen screen =
            make_screen_as(device, &generated.weight, GUMBEL_SCREEN_PROBABLE, format);
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
                                    .screen = way ? screen : (gumbel_screen){NULL, 0, 0}};
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
    check_sums(product, &cpu_screen_plain);
    check_sums(cpu_find_nibble_kernel(isa), &cpu_nibbles_plain);
    gumbel_device *device = open_device(isa, 2, 0);
    long drawn = 0, different = count_different(device, GUMBEL_SCREEN_BYTES, &drawn) +
                                count_different(device, GUMBEL_SCREEN_NIBBLES, &drawn);
    printf("%s, integer products %s: %ld of %ld draws differ\n", argv[1], product->name, different,
           drawn);
    gumbel_close(device);
    return different != 0;
}
