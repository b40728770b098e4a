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

/* Groups of kernels, as gumbel_cuda_architecture() names them. */
static const char *const kernel_groups[] = {"portable", "tensor", "clusters", "hopper"};
enum { GROUPS = sizeof kernel_groups / sizeof kernel_groups[0] };

/* Capabilities with examples of their GPUs. */
static const struct {
    int capability;
    const char *gpus;
} known_gpus[] = {{75, "T4, RTX 2080"},   {80, "A100"},       {86, "A10, RTX 3090"},
                  {89, "L40S, RTX 4090"}, {90, "H100, H200"}, {100, "B200"},
                  {120, "RTX 5090"}};
enum { KNOWN = sizeof known_gpus / sizeof known_gpus[0], GPUS_MAX = 64 };

/* A GPU that can be opened. */
struct gpu {
    gumbel_device_info info;
    int capability;
};

/* Fills the GPU with this number; false with the reason if it cannot be opened. */
static bool read_gpu(int number, struct gpu *gpu, gumbel_error *error)
{
    char name[16];
    const gumbel_device_options options = {.struct_size = sizeof options, .device = name};
    gumbel_device *device = NULL;

    snprintf(name, sizeof name, "cuda:%d", number);
    if (gumbel_open(&options, &device, error) != GUMBEL_OK) {
        return false;
    }
    gpu->info = describe_device(device);
    gpu->capability = gumbel_device_capability(device);
    gumbel_close(device);
    return true;
}

/* Fills `gpus` with those that can be opened, up to the first that cannot, and returns their
 * number. The error has the reason if it is 0. */
static int read_gpus(struct gpu *gpus, gumbel_error *error)
{
    int count = 0;

    while (count < GPUS_MAX && read_gpu(count, &gpus[count], error)) {
        count++;
    }
    return count;
}

/* "portable sm_90, tensor sm_90, clusters sm_90, hopper sm_90a": the images that serve a GPU. */
static void print_images(int capability)
{
    const char *separator = "";

    for (int i = 0; i < GROUPS; i++) {
        const char *architecture = gumbel_cuda_architecture(kernel_groups[i], capability);

        if (*architecture) {
            printf("%s%s %s", separator, kernel_groups[i], architecture);
            separator = ", ";
        }
    }
    printf("%s\n", *separator ? "" : "no kernels");
}

static json_t *images_to_json(int capability)
{
    json_t *images = json_object();

    for (int i = 0; i < GROUPS; i++) {
        json_put(images, kernel_groups[i],
                 json_string(gumbel_cuda_architecture(kernel_groups[i], capability)));
    }
    return images;
}

static void print_capability(int capability)
{
    printf("capability %d.%d: ", capability / 10, capability % 10);
    print_images(capability);
}

static void print_gpus(void)
{
    static struct gpu gpus[GPUS_MAX];
    static gumbel_error error;
    const int count = read_gpus(gpus, &error);

    for (int i = 0; i < count; i++) {
        printf("%-9s %s, ", gpus[i].info.name, gpus[i].info.description);
        print_capability(gpus[i].capability);
    }
    if (count > 0) {
        return;
    }
    printf("cuda      %s\n", error.message);
    for (int i = 0; i < KNOWN && *gumbel_cuda_architectures(); i++) {
        printf("%s%s, ", i == 0 ? "serves    " : "          ", known_gpus[i].gpus);
        print_capability(known_gpus[i].capability);
    }
}

static json_t *gpu_to_json(const struct gpu *gpu)
{
    json_t *object = json_object();

    json_put(object, "device", json_string(gpu->info.name));
    json_put(object, "description", json_string(gpu->info.description));
    json_put(object, "capability", json_integer(gpu->capability));
    json_put(object, "images", images_to_json(gpu->capability));
    return object;
}

/* Adds the GPUs, the first one's name or the reason why there is none, and the images of each known
 * capability. */
static void add_gpus(json_t *root, json_t *devices)
{
    static struct gpu gpus[GPUS_MAX];
    static gumbel_error error;
    const int count = read_gpus(gpus, &error);
    json_t *list = json_array();
    json_t *images = json_object();

    for (int i = 0; i < count; i++) {
        json_array_append_new(list, gpu_to_json(&gpus[i]));
    }
    for (int i = 0; i < KNOWN; i++) {
        char name[16];

        snprintf(name, sizeof name, "%d.%d", known_gpus[i].capability / 10,
                 known_gpus[i].capability % 10);
        json_put(images, name, images_to_json(known_gpus[i].capability));
    }
    json_put(devices, "cuda", json_string(count > 0 ? gpus[0].info.description : error.message));
    json_put(root, "gpus", list);
    json_put(root, "cuda_images", images);
}

static const char *kernels_text(void)
{
    const char *architectures = gumbel_cuda_architectures();

    return *architectures ? architectures : "none: this build supports CPUs only";
}

static void print_text(const gumbel_device *device, const gumbel_device_info *info, bool cuda)
{
    printf("version   %s\n", gumbel_version_string());
    printf("commit    %s\n", GUMBEL_COMMIT);
    printf("kernels   %s\n", kernels_text());
    if (cuda) {
        printf("gpu       %s, %d multiprocessors, ", info->description, info->threads);
        print_capability(gumbel_device_capability(device));
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
    print_gpus();
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
    add_gpus(root, devices);
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
    .doc =
        "Show the version, processor, instruction sets and devices, which compiled kernels serve "
        "each GPU, and the kernel variants (rungs) that serve common calls. Without a GPU: "
        "which GPUs the kernels serve.",
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
        print_text(device, &info, cuda);
        print_rungs(device);
    }
    gumbel_close(device);
    return 0;
}
