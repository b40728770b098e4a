/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel info: the features of this build and this machine.
 */
#include <stdio.h>

#include "arguments.h"
#include "commands.h"
#include "report.h"
#include "rung_names.h"

static const gumbel_isa all_isas[] = {GUMBEL_ISA_REFERENCE, GUMBEL_ISA_AVX2, GUMBEL_ISA_AVX512,
                                      GUMBEL_ISA_NEON};
enum { ISAS = sizeof all_isas / sizeof all_isas[0] };

/* The description of the first CUDA device, or the reason why there is none. */
static const char *describe_cuda(void)
{
    static gumbel_device_info info;
    static gumbel_error error;
    const gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:0"};
    gumbel_device *device = NULL;

    if (gumbel_open(&options, &device, &error) != GUMBEL_OK) {
        return error.message;
    }
    info = describe_device(device);
    gumbel_close(device);
    return info.description;
}

static const char *kernels_text(void)
{
    const char *architectures = gumbel_cuda_architectures();

    return *architectures ? architectures : "none: this build supports CPUs only";
}

static void print_text(const gumbel_device_info *info, bool cuda)
{
    printf("version   %s\n", gumbel_version_string());
    printf("commit    %s\n", GUMBEL_COMMIT);
    printf("kernels   %s\n", kernels_text());
    if (cuda) {
        printf("gpu       %s, %d multiprocessors\n", info->description, info->threads);
        return;
    }
    printf("cpu       %s\n", info->description[0] ? info->description : "unknown");
    printf("isa       %s (of", gumbel_isa_name(info->isa));
    for (int i = 0; i < ISAS; i++) {
        if (gumbel_isa_available(all_isas[i])) {
            printf(" %s", gumbel_isa_name(all_isas[i]));
        }
    }
    printf(")\n");
    printf("threads   %d\n", info->threads);
    printf("tile      %d vocabulary rows\n", info->tile);
    printf("cuda      %s\n", describe_cuda());
}

static json_t *to_json(const gumbel_device *device, const gumbel_device_info *info, bool cuda)
{
    json_t *root = json_object();
    json_t *available = json_array();
    json_t *devices = json_object();

    for (int i = 0; i < ISAS; i++) {
        if (gumbel_isa_available(all_isas[i])) {
            json_array_append_new(available, json_string(gumbel_isa_name(all_isas[i])));
        }
    }
    json_put(devices, "cpu", json_string("available"));
    json_put(devices, "cuda", json_string(describe_cuda()));
    json_put(root, "version", json_string(gumbel_version_string()));
    json_put(root, "commit", json_string(GUMBEL_COMMIT));
    json_put(root, "cuda_architectures", json_string(gumbel_cuda_architectures()));
    json_put(root, cuda ? "gpu" : "cpu", json_string(info->description));
    json_put(root, cuda ? "multiprocessors" : "threads", json_integer(info->threads));
    if (!cuda) {
        json_put(root, "isa", json_string(gumbel_isa_name(info->isa)));
        json_put(root, "tile", json_integer(info->tile));
    }
    json_put(root, "isas", available);
    json_put(root, "devices", devices);
    json_put(root, "served", rungs_to_json(device));
    return root;
}

static const struct argument accepted[] = {{0}};
const struct command_line info_line = {
    .doc = "Show the version, processor, instruction sets and devices, and the kernel variants "
           "(rungs) that serve common calls.",
    .arguments = accepted,
    .examples = "  $ gumbel info\n"
                "  $ gumbel info --device cuda:0 --json\n"};

int command_info(int argc, char **argv)
{
    struct common_options options = {0};
    gumbel_device_info info;
    gumbel_device *device = NULL;
    bool cuda = false;

    parse_arguments(&info_line, argc, argv, &options);
    device = open_device(&options.device);
    info = describe_device(device);
    cuda = device_is_cuda(device);
    if (options.json) {
        print_json(to_json(device, &info, cuda));
    } else {
        print_text(&info, cuda);
        print_rungs(device);
    }
    gumbel_close(device);
    return 0;
}
