# SPDX-License-Identifier: Apache-2.0
"""Print a C program of the examples in the comments of the public headers.

usage: header_examples.py INCLUDE run|compile

`run` prints a program that runs the examples of gumbel.h, screen.h and drafts.h; `compile` prints
the example of dist.h, which needs other ranks to run.
"""

import pathlib
import re
import sys

PROGRAM = """#define GUMBEL_UNSTABLE
#include <gumbel/dist.h>
#include <gumbel/screen.h>
#include <stdlib.h>

static void check(gumbel_status status)
{{
    if (status != GUMBEL_OK)
        exit(1);
}}
"""

RUN = """
enum {{ B = 3, V = 500, D = 32 }};
static float logits[B * V], hidden[B * D], weight[V * D];

static void draw_from_logits(uint64_t seed, uint64_t position, int32_t tokens[B])
{{
{gumbel}
    free(workspace);
    gumbel_close(device);
}}

static void draw_with_screen(gumbel_device *device, gumbel_head head, gumbel_sampling how,
                             gumbel_output out, void *workspace, size_t size)
{{
    gumbel_error error;
{screen}
    free(screen.data);
}}

static int32_t verify_drafts(gumbel_device *device, gumbel_head head, gumbel_sampling how,
                             int32_t draft_0, int32_t draft_1)
{{
    gumbel_error error;
    size_t bytes;
    uint64_t position = 0;
{drafts}
    free(workspace);
    return position == (uint64_t)emitted ? emitted : 0;
}}

/* Screens change no token, and drafts that are the target's own draws are accepted. */
int main(void)
{{
    gumbel_device *device;
    gumbel_error error;
    size_t size;
    uint64_t seeds[B] = {{7, 7, 7}}, positions[B] = {{0, 1, 2}};
    int32_t tokens[B] = {{-1, -1, -1}}, plain[B], screened[B];
    for (int i = 0; i < B * V; i++)
        logits[i] = (float)(i * 7919LL % 1999) / 999;
    for (int i = 0; i < V * D; i++)
        weight[i] = (float)(i * 7919LL % 1999) / 999 - 1;
    for (int i = 0; i < B * D; i++)
        hidden[i] = (float)(i * 104729LL % 997) / 499 - 1;
    gumbel_head head = {{.struct_size = sizeof head,
                        .hidden = {{hidden, GUMBEL_FLOAT32, B, D, 0, {{0, 0}}}},
                        .weight = {{weight, GUMBEL_FLOAT32, V, D, 0, {{0, 0}}}}}};
    gumbel_sampling how = {{.struct_size = sizeof how,
                           .seed = {{seeds, 0}}, .position = {{positions, 0}}}};
    gumbel_output out = {{.struct_size = sizeof out, .tokens = plain}};
    gumbel_limits limits = {{.struct_size = sizeof limits, .batch = B, .hidden_size = D,
                            .screens = 1}};
    check(gumbel_open(NULL, &device, &error));
    check(gumbel_workspace_most(device, &limits, &size, &error));
    size = (size + 63) / 64 * 64;
    void *workspace = aligned_alloc(64, size);
    check(gumbel_sample(device, NULL, &head, &how, &out, workspace, size, &error));
    out.tokens = screened;
    draw_with_screen(device, head, how, out, workspace, size);
    int32_t both = verify_drafts(device, head, how, plain[0], plain[1]);
    int32_t none = verify_drafts(device, head, how, (plain[0] + 1) % V, plain[1]);
    free(workspace);
    gumbel_close(device);
    draw_from_logits(seeds[0], 0, tokens);
    for (int b = 0; b < B; b++)
        if (plain[b] != screened[b] || tokens[b] < 0 || tokens[b] >= V)
            return 2;
    return both == 3 && none == 1 ? 0 : 3;
}}
"""

COMPILE = """
gumbel_status gumbel_mpi_world(gumbel_transport *transport, gumbel_error *error);
void draw_from_shard(gumbel_device *device, gumbel_head head, gumbel_sampling how,
                     gumbel_output out);

void draw_from_shard(gumbel_device *device, gumbel_head head, gumbel_sampling how,
                     gumbel_output out)
{{
    gumbel_error error;
    size_t bytes;
{dist}
    free(workspace);
}}
"""


def example(header):
    """The code below the line of the head's comment that begins with "Example"."""
    head = header.read_text(encoding="utf-8").partition("*/")[0]
    code = re.search(r"^ \* Example\b(?:.+\n)+? \*\n((?: \*     .*\n)+)", head, re.M)[1]
    return re.sub(r"^ \* ", "", code, flags=re.M).rstrip()


def main():
    folder, what = pathlib.Path(sys.argv[1]) / "gumbel", sys.argv[2]
    names = ("dist",) if what == "compile" else ("gumbel", "screen", "drafts")
    template = PROGRAM + (COMPILE if what == "compile" else RUN)
    print(template.format(**{name: example(folder / f"{name}.h") for name in names}), end="")


main()
