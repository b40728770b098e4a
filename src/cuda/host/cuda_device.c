/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/host/cuda_device.h"

#include "core/fail.h"
#include "cuda/host/cuda_images.h"
#include "cuda/host/cuda_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Whether this is a child of fork(): what it has of the driver is of no use. */
static int is_orphaned(const cuda_device *cuda) { return getpid() != cuda->process; }

gumbel_status cuda_enter(const cuda_device *cuda, gumbel_error *error)
{
    if (is_orphaned(cuda))
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "device",
                           "it was opened before fork(), which CUDA does not survive");
    CUDA_TRY(&cuda->driver, error, cuCtxPushCurrent, cuda->context);
    return GUMBEL_OK;
}

static void close_device(gumbel_device *device)
{
    cuda_device *cuda = (cuda_device *)device;
    const cuda_driver *driver = &cuda->driver;
    CUcontext popped;
    int mine = cuda->context && !is_orphaned(cuda);
    if (mine && cuda_enter(cuda, NULL) == GUMBEL_OK) {
        for (int i = 0; i < CUDA_MODULES; i++)
            if (cuda->modules[i])
                driver->cuModuleUnload(cuda->modules[i]);
        driver->cuCtxPopCurrent(&popped);
    }
    if (mine)
        driver->cuDevicePrimaryCtxRelease(cuda->device);
    free(cuda);
}

static void describe(const gumbel_device *device, gumbel_device_info *info)
{
    const cuda_device *cuda = (const cuda_device *)device;
    info->isa = GUMBEL_ISA_AUTO;
    info->threads = cuda->multiprocessors;
    info->tile = CUDA_SM90_TILE;
    snprintf(info->name, sizeof info->name, "cuda:%d", cuda->ordinal);
    if (!is_orphaned(cuda))
        cuda->driver.cuDeviceGetName(info->description, sizeof info->description, cuda->device);
}

static const gumbel_backend backend = {
    .close = close_device,
    .describe = describe,
    .serves = GUMBEL_REQUEST_END - 1,
    .most = cuda_most,
    .call_size = cuda_call_size,
    .explain = cuda_explain,
    .partial = cuda_partial,
    .sample = cuda_sample,
    .process = cuda_process,
    .softmax = cuda_softmax,
    .history_start = cuda_history_start,
    .history_update = cuda_history_update,
    .noise = cuda_noise,
    .advance = cuda_advance,
    .expand_drafts = cuda_expand_drafts,
    .accept_drafts = cuda_accept_drafts,
    .weighing_size = cuda_weighing_size,
    .store = cuda_store,
    .ranks = &cuda_rank_calls,
    .finish = cuda_finish_parts,
    .screen_layout = GUMBEL_SCREEN_LAYOUT_TILES,
    .screen_prepare = cuda_screen_prepare,
    .screen_verify = cuda_screen_verify,
    .multiply = cuda_multiply,
};

/* "cuda:N" to N; -1 for anything else. */
static int ordinal_of(const char *name)
{
    const char *digits = name + strlen("cuda:");
    size_t length = strncmp(name, "cuda:", strlen("cuda:")) == 0 ? strlen(digits) : 0;
    if (length < 1 || length > 4 || strspn(digits, "0123456789") != length)
        return -1;
    return atoi(digits);
}

static gumbel_status check_options(const gumbel_device_options *o, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(o->isa != GUMBEL_ISA_AUTO, error, "options.isa",
                     "only the CPU has instruction sets to choose from");
    GUMBEL_REFUSE_IF(o->threads != 0, error, "options.threads", "only the CPU has threads");
    GUMBEL_REFUSE_IF(o->tile != 0, error, "options.tile", "only the CPU lets it be chosen");
    GUMBEL_REFUSE_IF(o->parallel_for != NULL, error, "options.parallel_for",
                     "only the CPU has threads");
    return GUMBEL_OK;
}

/* Find the GPU and what it is. */
static gumbel_status find_device(cuda_device *cuda, gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    int count = 0, major = 0, minor = 0;
    CUDA_TRY(driver, error, cuDeviceGetCount, &count);
    if (cuda->ordinal >= count)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "there is no cuda:%d: this machine has %d CUDA devices", cuda->ordinal,
                           count);
    CUDA_TRY(driver, error, cuDeviceGet, &cuda->device, cuda->ordinal);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &major,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &minor,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &cuda->multiprocessors,
             CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda->device);
    CUDA_TRY(driver, error, cuDeviceGetAttribute, &cuda->shared_bytes,
             CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, cuda->device);
    cuda->capability = 10 * major + minor;
    if (cuda->capability < CUDA_CAPABILITY_LEAST)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "cuda:%d has compute capability %d.%d; the kernels need %d.%d",
                           cuda->ordinal, major, minor, CUDA_CAPABILITY_LEAST / 10,
                           CUDA_CAPABILITY_LEAST % 10);
    return GUMBEL_OK;
}

/* A kernel by name, on the GPU already: a first launch that had to load it would wait. */
static gumbel_status get_kernel(cuda_device *cuda, cuda_module module, const char *name,
                                CUfunction *kernel, gumbel_error *error)
{
    int registers;
    CUDA_TRY(&cuda->driver, error, cuModuleGetFunction, kernel, cuda->modules[module], name);
    CUDA_TRY(&cuda->driver, error, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
             *kernel);
    return GUMBEL_OK;
}

static gumbel_status get_fused_sm80(cuda_device *cuda, gumbel_error *error)
{
    static const char *const names[] = {
        [CUDA_BF16] = "bf16", [CUDA_F16] = "f16", [CUDA_F32] = "f32"};
    for (int dtype = CUDA_BF16; dtype < CUDA_DTYPES; dtype++)
        for (int i = 0; i < CUDA_SM80_WIDTHS; i++) {
            char name[64];
            int n = cuda_sm80_widths[i], samples = CUDA_SM80_STATES / n;
            CUfunction *kernel = &cuda->fused_sm80[dtype][i];
            snprintf(name, sizeof name, "gumbel_fused_sm80_%s_%d", names[dtype], n);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_SM80, name, kernel, error));
            CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                     cuda_sm80_shared_bytes(n, samples, 1, 0));
        }
    for (int dtype = CUDA_BF16; dtype <= CUDA_F16; dtype++) {
        char name[64];
        int n = cuda_sm80_widths[0], samples = CUDA_SM80_STATES / n;
        CUfunction *kernel = &cuda->mixed_sm80[dtype];
        snprintf(name, sizeof name, "gumbel_fused_sm80_mixed_%s_%d", names[dtype], n);
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_SM80, name, kernel, error));
        CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                 cuda_sm80_shared_bytes(n, samples, 1, 1));
    }
    return GUMBEL_OK;
}

static gumbel_status get_fused_sm90(cuda_device *cuda, gumbel_error *error)
{
    static const char *const dtypes[] = {[CUDA_BF16] = "bf16", [CUDA_F16] = "f16"};
    static const char *const cases[] = {[CUDA_SM90_PLAIN] = "plain",
                                        [CUDA_SM90_PLAIN_MASS] = "plain_mass",
                                        [CUDA_SM90_STORED] = "stored",
                                        [CUDA_SM90_BOTH] = "both",
                                        [CUDA_SM90_ANY] = "any"};
    for (int i = 0; i < (CUDA_F16 + 1) * CUDA_SM90_WIDTHS * CUDA_SM90_CASES; i++) {
        int dtype = i / CUDA_SM90_CASES / CUDA_SM90_WIDTHS;
        int width = i / CUDA_SM90_CASES % CUDA_SM90_WIDTHS, kind = i % CUDA_SM90_CASES;
        char name[64];
        CUfunction *kernel = &cuda->fused_sm90[dtype][width][kind];
        if (kind == CUDA_SM90_BOTH && !CUDA_SM90_HAS_BOTH(cuda_sm90_widths[width]))
            continue;
        snprintf(name, sizeof name, "gumbel_fused_sm90_%s_%d_%s", dtypes[dtype],
                 cuda_sm90_widths[width], cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_SM90, name, kernel, error));
        CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_SM90_SHARED_BYTES);
    }
    return GUMBEL_OK;
}

/* Those that make screens, and where there is wgmma, those that draw by them. */
static gumbel_status get_screen(cuda_device *cuda, gumbel_error *error)
{
    static const char *const dtypes[] = {[CUDA_BF16] = "bf16", [CUDA_F16] = "f16"};
    static const char *const cases[] = {
        [CUDA_SCREEN_PLAIN] = "", [CUDA_SCREEN_ANY] = "_any", [CUDA_SCREEN_CUT] = "_cut"};
    const cuda_module make = CUDA_MODULE_SCREEN_MAKE, score = CUDA_MODULE_SCREEN_SCORE;
    char name[64];
    GUMBEL_FORWARD(get_kernel(cuda, make, "gumbel_begin_screen", &cuda->screen_begin, error));
    GUMBEL_FORWARD(get_kernel(cuda, make, "gumbel_make_screen", &cuda->screen_make, error));
    GUMBEL_FORWARD(get_kernel(cuda, make, "gumbel_seal_screen", &cuda->screen_seal, error));
    GUMBEL_FORWARD(get_kernel(cuda, make, "gumbel_verify_screen", &cuda->screen_verify, error));
    if (!cuda->modules[score])
        return GUMBEL_OK;
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_SCREEN_ROWS, "gumbel_screen_cut", &cuda->screen_cut, error));
    for (int kind = 0; kind < CUDA_SCREEN_CASES; kind++) {
        snprintf(name, sizeof name, "gumbel_split_rows%s", cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, score, name, &cuda->screen_split[kind], error));
    }
    for (int i = 0; i < CUDA_SCREEN_WIDTHS * CUDA_SCREEN_CASES; i++) {
        const int place = i / CUDA_SCREEN_CASES, kind = i % CUDA_SCREEN_CASES;
        CUfunction *kernel = &cuda->screen_draw[place][kind];
        snprintf(name, sizeof name, "gumbel_screen_rows_%d%s", cuda_screen_widths[place],
                 cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_SCREEN_DRAW, name, kernel, error));
        CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_SM90_SHARED_BYTES);
    }
    for (int dtype = CUDA_BF16; dtype <= CUDA_F16; dtype++) {
        for (int kind = 0; kind < CUDA_SCREEN_CASES; kind++) {
            CUfunction *kernel = &cuda->screen_score[dtype][kind];
            snprintf(name, sizeof name, "gumbel_score_rows_%s%s", dtypes[dtype],
                     kind == CUDA_SCREEN_CUT ? "_cut" : "");
            GUMBEL_FORWARD(get_kernel(cuda, score, name, kernel, error));
            CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_SCREEN_SCORE_BYTES);
        }
        for (int i = 0; i <= cuda_sm90_width_for(CUDA_SCREEN_ROWS_MOST); i++) {
            CUfunction *kernel = &cuda->fused_again[dtype][i];
            snprintf(name, sizeof name, "gumbel_fused_again_%s_%d", dtypes[dtype],
                     cuda_sm90_widths[i]);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_AGAIN, name, kernel, error));
            CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_SM90_SHARED_BYTES);
            kernel = &cuda->store_again[dtype][i];
            snprintf(name, sizeof name, "gumbel_store_again_%s_%d", dtypes[dtype],
                     cuda_sm90_widths[i]);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_AGAIN, name, kernel, error));
            CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_SM90_SHARED_BYTES);
        }
    }
    return GUMBEL_OK;
}

static gumbel_status get_logits(cuda_device *cuda, gumbel_error *error)
{
    static const char *const names[] = {
        [CUDA_BF16] = "bf16", [CUDA_F16] = "f16", [CUDA_F32] = "f32"};
    for (int i = 0; i < 4 * CUDA_DTYPES; i++) {
        int dtype = i / 4, mass = i / 2 % 2, noise = i % 2;
        char name[64];
        CUfunction *kernel = &cuda->logits[dtype][mass][noise];
        snprintf(name, sizeof name, "gumbel_draw_logits_%s%s%s", names[dtype],
                 noise ? "_noise" : "", mass ? "_mass" : "");
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_LOGITS, name, kernel, error));
        CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                 cuda_logits_shared_bytes(mass, INT64_MAX, CUDA_LOGITS_SAMPLES));
    }
    for (int dtype = CUDA_BF16; dtype < CUDA_DTYPES; dtype++) {
        char name[64];
        snprintf(name, sizeof name, "gumbel_draw_logits_%s_edited", names[dtype]);
        GUMBEL_FORWARD(
            get_kernel(cuda, CUDA_MODULE_LOGITS, name, &cuda->logits_edited[dtype], error));
    }
    return GUMBEL_OK;
}

static gumbel_status get_softmax(cuda_device *cuda, gumbel_error *error)
{
    static const char *const names[] = {
        [CUDA_BF16] = "bf16", [CUDA_F16] = "f16", [CUDA_F32] = "f32"};
    for (int dtype = CUDA_BF16; dtype < CUDA_DTYPES; dtype++) {
        char weigh[64], normalise[64];
        snprintf(weigh, sizeof weigh, "gumbel_weigh_%s", names[dtype]);
        snprintf(normalise, sizeof normalise, "gumbel_normalise_%s", names[dtype]);
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_SOFTMAX, weigh, &cuda->weigh[dtype], error));
        GUMBEL_FORWARD(
            get_kernel(cuda, CUDA_MODULE_SOFTMAX, normalise, &cuda->normalise[dtype], error));
    }
    return GUMBEL_OK;
}

static gumbel_status get_weighing(cuda_device *cuda, gumbel_error *error)
{
    const cuda_module module = CUDA_MODULE_WEIGH_DRAFTS;
    GUMBEL_FORWARD(get_kernel(cuda, module, "gumbel_expand_weighed", &cuda->expand_weighed, error));
    GUMBEL_FORWARD(get_kernel(cuda, module, "gumbel_weigh_drafts", &cuda->weigh_drafts, error));
    GUMBEL_FORWARD(get_kernel(cuda, module, "gumbel_sum_drafts", &cuda->sum_drafts, error));
    return get_kernel(cuda, module, "gumbel_race_drafts", &cuda->race_drafts, error);
}

static gumbel_status get_ranks(cuda_device *cuda, gumbel_error *error)
{
    CUdeviceptr listed;
    size_t bytes;
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_EXCHANGE, "gumbel_exchange_rows",
                              &cuda->exchange_rows, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_EXCHANGE, "gumbel_exchange_summaries",
                              &cuda->exchange_summaries, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_EXCHANGE, "gumbel_ask_rows", &cuda->ask_rows, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_EXCHANGE, "gumbel_lay_rows", &cuda->lay_rows, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_CANDIDATES, "gumbel_draw_candidates",
                              &cuda->draw_candidates, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_CANDIDATES, "gumbel_tell_candidates",
                              &cuda->tell_candidates, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_CANDIDATES, "gumbel_bound_rows", &cuda->bound_rows, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_CANDIDATES, "gumbel_spread_rows", &cuda->spread_rows, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_DRAW_PARTS, "gumbel_draw_parts", &cuda->draw_parts, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_DRAW_PARTS, "gumbel_add_part", &cuda->add_part, error));
    CUDA_TRY(&cuda->driver, error, cuModuleGetGlobal, &listed, &bytes,
             cuda->modules[CUDA_MODULE_CANDIDATES], "gumbel_listed_tokens");
    cuda->listed_tokens = (const int32_t *)(uintptr_t)listed;
    return GUMBEL_OK;
}

static gumbel_status get_request(cuda_device *cuda, gumbel_error *error)
{
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_HISTORY, "gumbel_start_history", &cuda->history_start, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_HISTORY, "gumbel_update_history",
                              &cuda->history_update, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_EDIT, "gumbel_edit_logits",
                              &cuda->request_edit, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_PIVOTS, "gumbel_request_pivots",
                              &cuda->request_pivots, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_NAIVE, "gumbel_request_naive",
                              &cuda->request_naive, error));
    CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, cuda->request_naive,
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_REQUEST_STAGE_BYTES);
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_REQUEST, "gumbel_request_logits", &cuda->request, error));
    CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, cuda->request,
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_REQUEST_SHARED_BYTES);
    if (!cuda->modules[CUDA_MODULE_REQUEST_TEAM])
        return GUMBEL_OK;
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_BLOCKS, "gumbel_request_blocks",
                              &cuda->request_blocks, error));
    CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, cuda->request_blocks,
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_REQUEST_BLOCKS_BYTES);
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_BLOCKS, "gumbel_request_bounded",
                              &cuda->request_bounded, error));
    CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, cuda->request_bounded,
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CUDA_REQUEST_BLOCKS_BYTES);
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_REQUEST_TEAM, "gumbel_request_team",
                              &cuda->request_team, error));
    CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, cuda->request_team,
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
             cuda_request_team_bytes(cuda->shared_bytes));
    return GUMBEL_OK;
}

/* Whether a GPU of this capability can run a module's kernels. */
static int module_serves(int module, int capability)
{
    if (module == CUDA_MODULE_REQUEST_BLOCKS || module == CUDA_MODULE_REQUEST_TEAM)
        return capability >= CUDA_SM90_CAPABILITY;
    return module < CUDA_MODULE_FUSED_SM90 || capability == CUDA_SM90_CAPABILITY;
}

/* Load every kernel that this GPU can run. The context is current. */
static gumbel_status load_kernels(cuda_device *cuda, gumbel_error *error)
{
    const unsigned char *const images[] = {
        [CUDA_MODULE_ADVANCE] = cuda_image_advance,
        [CUDA_MODULE_ALLOW] = cuda_image_allow,
        [CUDA_MODULE_BEST] = cuda_image_best,
        [CUDA_MODULE_CANDIDATES] = cuda_image_candidates,
        [CUDA_MODULE_DRAFTS] = cuda_image_drafts,
        [CUDA_MODULE_DRAW_PARTS] = cuda_image_draw_parts,
        [CUDA_MODULE_EXCHANGE] = cuda_image_exchange,
        [CUDA_MODULE_WEIGH_DRAFTS] = cuda_image_weigh_drafts,
        [CUDA_MODULE_FINISH] = cuda_image_finish,
        [CUDA_MODULE_GATHER] = cuda_image_gather,
        [CUDA_MODULE_HISTORY] = cuda_image_history,
        [CUDA_MODULE_NAIVE] = cuda_image_naive,
        [CUDA_MODULE_NOISE] = cuda_image_noise,
        [CUDA_MODULE_LOGITS] = cuda_image_logits,
        [CUDA_MODULE_REQUEST] = cuda_image_request,
        [CUDA_MODULE_REQUEST_EDIT] = cuda_image_request_edit,
        [CUDA_MODULE_REQUEST_NAIVE] = cuda_image_request_naive,
        [CUDA_MODULE_REQUEST_PIVOTS] = cuda_image_request_pivots,
        [CUDA_MODULE_SOFTMAX] = cuda_image_softmax,
        [CUDA_MODULE_REQUEST_BLOCKS] = cuda_image_request_blocks,
        [CUDA_MODULE_REQUEST_TEAM] = cuda_image_request_team,
        [CUDA_MODULE_FUSED_SM80] = cuda_image_fused_sm80,
        [CUDA_MODULE_FUSED_SM90] = cuda_image_fused_sm90,
        [CUDA_MODULE_FUSED_AGAIN] = cuda_image_fused_again_sm90,
        [CUDA_MODULE_SCREEN_DRAW] = cuda_image_screen_draw,
        [CUDA_MODULE_SCREEN_MAKE] = cuda_image_screen_make,
        [CUDA_MODULE_SCREEN_ROWS] = cuda_image_screen_rows,
        [CUDA_MODULE_SCREEN_SCORE] = cuda_image_screen_score,
    };
    for (int i = 0; i < CUDA_MODULES; i++)
        if (module_serves(i, cuda->capability))
            CUDA_TRY(&cuda->driver, error, cuModuleLoadData, &cuda->modules[i], images[i]);
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_ADVANCE, "gumbel_advance_rows", &cuda->advance, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_BEST, "gumbel_list_best", &cuda->best, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_DRAFTS, "gumbel_expand_drafts", &cuda->expand_drafts, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_DRAFTS, "gumbel_accept_drafts", &cuda->accept_drafts, error));
    GUMBEL_FORWARD(get_ranks(cuda, error));
    GUMBEL_FORWARD(get_weighing(cuda, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_ALLOW, "gumbel_allow_tokens", &cuda->allow, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_FINISH, "gumbel_finish_any", &cuda->finish_any, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_NOISE, "gumbel_make_noise", &cuda->noise, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_FINISH, "gumbel_finish_rows", &cuda->finish, error));
    GUMBEL_FORWARD(
        get_kernel(cuda, CUDA_MODULE_GATHER, "gumbel_gather_logits", &cuda->gather, error));
    GUMBEL_FORWARD(get_softmax(cuda, error));
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_NAIVE, "gumbel_draw_naive", &cuda->naive, error));
    GUMBEL_FORWARD(get_request(cuda, error));
    GUMBEL_FORWARD(get_logits(cuda, error));
    GUMBEL_FORWARD(get_fused_sm80(cuda, error));
    GUMBEL_FORWARD(get_screen(cuda, error));
    return cuda->modules[CUDA_MODULE_FUSED_SM90] ? get_fused_sm90(cuda, error) : GUMBEL_OK;
}

static gumbel_status start(cuda_device *cuda, gumbel_error *error)
{
    const cuda_driver *driver = &cuda->driver;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_driver_load(&cuda->driver, error));
    GUMBEL_FORWARD(find_device(cuda, error));
    CUDA_TRY(driver, error, cuDevicePrimaryCtxRetain, &cuda->context, cuda->device);
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = load_kernels(cuda, error);
    driver->cuCtxPopCurrent(&popped);
    return status;
}

gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error)
{
    int ordinal = ordinal_of(options->device);
    if (ordinal < 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                           "device '%.64s' is none of cpu, cuda:0, cuda:1, ...", options->device);
    cuda_rung_choice rungs;
    GUMBEL_FORWARD(check_options(options, error));
    GUMBEL_FORWARD(options->rungs
                       ? cuda_read_rungs(&rungs, options->rungs, "options.rungs", error)
                       : cuda_read_rungs(&rungs, getenv("GUMBEL_RUNGS"), "GUMBEL_RUNGS", error));
    cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "device", "out of memory");
    cuda->base.backend = &backend;
    cuda->process = getpid();
    cuda->ordinal = ordinal;
    cuda->rungs = rungs;
    gumbel_status status = start(cuda, error);
    if (status != GUMBEL_OK) {
        close_device(&cuda->base);
        return status;
    }
    *device = &cuda->base;
    return GUMBEL_OK;
}
