/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/plan/cuda_plan.h"

#include "core/fail.h"

#include <string.h>

/* Capabilities that a call requires of a product that only stores logits: first those taken from
 * the call, then those always required. */
#define CAPABILITIES_OF_STORE       GUMBEL_CAPABILITY_BIAS
#define REQUIRED_OF_STORE(required) (((required)&CAPABILITIES_OF_STORE) | GUMBEL_CAPABILITY_PRODUCT)

/* The bit of a rung's name in a choice; 0 if no rung has the name. */
static uint32_t find_rung_bit(const char *name, size_t length)
{
    for (int i = 0; i < CUDA_PRODUCTS + CUDA_ROW_RUNGS; i++) {
        const gumbel_rung *rung =
            i < CUDA_PRODUCTS ? &cuda_products[i].rung : &cuda_row_rungs[i - CUDA_PRODUCTS].rung;
        if (strlen(rung->name) == length && memcmp(rung->name, name, length) == 0)
            return 1u << i;
    }
    return 0;
}

gumbel_status cuda_read_rungs(cuda_rung_choice *choice, const char *names, const char *field,
                              gumbel_error *error)
{
    *choice = (cuda_rung_choice){0};
    if (!names || !*names)
        return GUMBEL_OK;
    do {
        int minus = *names == '-';
        size_t length = strcspn(names + minus, ",");
        uint32_t bit = find_rung_bit(names + minus, length);
        GUMBEL_REFUSE_IF(!bit, error, field, "no rung has the name '%.*s'",
                         (int)(length < 40 ? length : 40), names + minus);
        *(minus ? &choice->excluded : &choice->preferred) |= bit;
        names += minus + length;
    } while (*names++ == ',');
    return GUMBEL_OK;
}

/* The index of the next rung of a table, preferred rungs first; -1 after all `count`. `turn` starts
 * at 0. */
static int next_rung(const cuda_device *cuda, int first, int count, int *turn)
{
    for (; *turn < 2 * count; ++*turn) {
        uint32_t bit = 1u << (first + *turn % count);
        int preferred = (cuda->rungs.preferred & bit) != 0;
        if (!(cuda->rungs.excluded & bit) && preferred == (*turn < count))
            return (*turn)++ % count;
    }
    return -1;
}

static const cuda_product *choose_product(const cuda_device *cuda, const gumbel_problem *p,
                                          uint64_t required)
{
    int turn = 0;
    for (int i; (i = next_rung(cuda, 0, CUDA_PRODUCTS, &turn)) >= 0;) {
        const cuda_product *product = &cuda_products[i];
        if (gumbel_rung_supports(&product->rung, required) &&
            !(product->refuses && product->refuses(cuda, p)))
            return product;
    }
    return NULL;
}

static const cuda_rows *choose_rows(const cuda_device *cuda, const gumbel_problem *p,
                                    uint64_t required, uint32_t offered)
{
    int turn = 0;
    for (int i; (i = next_rung(cuda, CUDA_PRODUCTS, CUDA_ROW_RUNGS, &turn)) >= 0;) {
        const cuda_rows *rows = &cuda_row_rungs[i];
        if (gumbel_rung_supports(&rows->rung, required) &&
            !(rows->refuses && rows->refuses(cuda, p, offered)))
            return rows;
    }
    return NULL;
}

static gumbel_status fail_unserved(const cuda_device *cuda, uint64_t required, gumbel_error *error)
{
    char names[160] = "a plain draw";
    gumbel_text text = {names, sizeof names, 0};
    if (required & GUMBEL_FEATURE_PROGRAM && !cuda->truncated_cluster && !cuda->truncated_grid)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "sampling.truncation.programs",
                           "the GPU has neither thread-block clusters nor cooperative launches; "
                           "set `order` instead");
    gumbel_text_add_capabilities(&text, required);
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.rungs",
                       "no allowed rung serves this call: %s", names);
}

gumbel_problem cuda_replace_allowed(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    if (p.features & GUMBEL_FEATURE_ALLOWED) {
        p.features = (p.features & ~(uint32_t)GUMBEL_FEATURE_ALLOWED) | GUMBEL_FEATURE_MASK;
        p.mask_by_row = 1;
        p.transforms.mask = (gumbel_row_i32){NULL, cuda_allowed_words(&p)};
    }
    return p;
}

gumbel_status cuda_plan_call(cuda_plan *plan, const cuda_device *cuda, const gumbel_problem *p,
                             uint64_t purpose, gumbel_error *error)
{
    const uint64_t required = gumbel_required_capabilities(p) | purpose;
    uint32_t offered = 0;
    *plan = (cuda_plan){.required = required};
    GUMBEL_ASSERT(p->batch > 0 && !(p->features & GUMBEL_FEATURE_ALLOWED));
    if (p->hidden_size > 0 && !(required & GUMBEL_CAPABILITY_EMPTY)) {
        plan->product = choose_product(cuda, p, required);
        if (plan->product)
            return GUMBEL_OK;
        plan->product = choose_product(cuda, p, REQUIRED_OF_STORE(required));
        if (!plan->product)
            return fail_unserved(cuda, required, error);
        offered = plan->product->offers ? plan->product->offers(p) : 0;
    }
    plan->rows = choose_rows(cuda, p, required & ~CAPABILITIES_OF_STORE, offered);
    if (!plan->rows)
        return fail_unserved(cuda, required, error);
    plan->product_outputs = offered & plan->rows->uses;
    GUMBEL_ASSERT(!plan->product_outputs || plan->product);
    return GUMBEL_OK;
}

gumbel_status cuda_plan_stored(cuda_plan *plan, const cuda_device *cuda,
                               const gumbel_problem *problem, gumbel_error *error)
{
    GUMBEL_FORWARD(cuda_plan_call(plan, cuda, problem, 0, error));
    plan->stores_outside = 1;
    return GUMBEL_OK;
}

int cuda_plan_finds_top64(const cuda_plan *plan, const gumbel_problem *problem)
{
    return plan->rows && plan->rows->finds_top64 &&
           (plan->product_outputs & CUDA_OUTPUT_BLOCK_MAXIMA) &&
           CUDA_TOP64_BYTES_OF(cuda_blocks_of(problem)) <= CUDA_TOP64_BYTES_MAX;
}

/* Summaries and thresholds, enough for every rung that draws. */
static void carve_draws(gumbel_cursor *cursor, const cuda_device *cuda, size_t batch,
                        size_t samples, cuda_workspace *workspace)
{
    size_t draws, count = SIZE_MAX, sms = (size_t)cuda->multiprocessors;
    if (!__builtin_mul_overflow(batch, samples, &draws)) {
        size_t side = samples < CUDA_LOGITS_SAMPLES ? samples : CUDA_LOGITS_SAMPLES;
        size_t portable = sms * CUDA_NAIVE_CTAS * side;
        size_t sm80 =
            CUDA_SM80_CTAS_MAX * sms * (draws < CUDA_SM80_STATES ? draws : CUDA_SM80_STATES);
        size_t sm90 = sms * (draws < CUDA_SM90_STATES ? draws : CUDA_SM90_STATES);
        count = draws > portable ? draws : portable;
        count = count > sm80 ? count : sm80;
        count = count > sm90 ? count : sm90;
    }
    workspace->summaries = gumbel_carve_array(cursor, count, 1, sizeof(gumbel_summary));
    workspace->summaries_max = count;
    workspace->row_thresholds =
        gumbel_carve_array(cursor, batch, samples, CUDA_THRESHOLD_WORDS * sizeof(uint64_t));
}

size_t cuda_max_workspace_size(const gumbel_device *device, const gumbel_limits *limits)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_cursor cursor = {0};
    cuda_workspace workspace;
    carve_draws(&cursor, cuda, (size_t)limits->batch, (size_t)limits->num_samples, &workspace);
    if (limits->screens) {
        const int64_t max_draws = CUDA_SCREEN_ROWS_MAX, samples = limits->num_samples > 1 ? 2 : 1;
        const int64_t draws =
            limits->batch < max_draws / samples ? limits->batch * limits->num_samples : max_draws;
        gumbel_problem p = {.batch =
                                ((draws < max_draws ? draws : max_draws) + samples - 1) / samples,
                            .hidden_size = limits->hidden_size,
                            .sampling.num_samples = (int32_t)samples};
        cuda_carve_screen(&cursor, cuda, &p, &workspace);
        if (limits->requests)
            gumbel_carve_array(&cursor, (size_t)max_draws, CUDA_SCREEN_EXACT_MAX,
                               sizeof *workspace.screen.exact);
    }
    if (limits->requests)
        cuda_carve_max(&cursor, cuda, limits);
    return cursor.used;
}

cuda_workspace cuda_carve_plan(const cuda_plan *plan, gumbel_cursor *cursor,
                               const cuda_device *cuda, const gumbel_problem *p)
{
    cuda_workspace workspace = {NULL};
    if (cuda_makes_mask(p))
        workspace.allowed = gumbel_carve_array(
            cursor, (size_t)p->batch, (size_t)cuda_allowed_words(p), sizeof *workspace.allowed);
    carve_draws(cursor, cuda, (size_t)p->batch, (size_t)p->sampling.num_samples, &workspace);
    if (p->hidden_size > 0 && plan->rows && !plan->rows->ignores_logits && !plan->stores_outside)
        workspace.logits = gumbel_carve_array(cursor, (size_t)p->batch, (size_t)cuda_row_stride(p),
                                              sizeof *workspace.logits);
    if (plan->product && plan->product->carve)
        plan->product->carve(cursor, cuda, p, &workspace);
    if (plan->rows && plan->rows->carve)
        plan->rows->carve(cursor, cuda, p, &workspace);
    if (plan->rows)
        cuda_carve_outputs(cursor, p, &workspace);
    return workspace;
}

gumbel_status cuda_plan_backend(const gumbel_device *device, const gumbel_problem *problem,
                                uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    gumbel_cursor cursor = {0};
    cuda_plan own;
    gumbel_problem p = cuda_replace_allowed(problem);
    GUMBEL_FORWARD(cuda_plan_call(&own, (const cuda_device *)device, &p, purpose, error));
    cuda_carve_plan(&own, &cursor, (const cuda_device *)device, &p);
    *plan = (gumbel_plan){.required = own.required,
                          .product = own.product ? &own.product->rung : NULL,
                          .rows = own.rows ? &own.rows->rung : NULL,
                          .product_outputs = own.product_outputs,
                          .workspace_bytes = cursor.used};
    return GUMBEL_OK;
}

cuda_plan cuda_plan_of(const gumbel_plan *plan)
{
    return (cuda_plan){.required = plan->required,
                       .product = (const cuda_product *)plan->product,
                       .rows = (const cuda_rows *)plan->rows,
                       .product_outputs = plan->product_outputs};
}

/* --------------------------------------------------------------------------- explanations ---- */

/* The line of a chosen rung. */
static void add_choice(gumbel_text *text, const char *purpose, const gumbel_rung *rung)
{
    gumbel_text_add(text, "%s: %s: %s (%s)\n", purpose, rung->name, rung->method, rung->kernels);
}

static void add_products(gumbel_text *text, const cuda_device *cuda, const gumbel_problem *p,
                         const cuda_plan *plan)
{
    uint64_t required = plan->rows ? REQUIRED_OF_STORE(plan->required) : plan->required;
    int turn = 0;
    add_choice(text, plan->rows ? "logits" : "draw", &plan->product->rung);
    for (int i; (i = next_rung(cuda, 0, CUDA_PRODUCTS, &turn)) >= 0;) {
        const cuda_product *other = &cuda_products[i];
        if (other == plan->product)
            break;
        /* A product that cannot store logits would have to serve the whole call. */
        int stores = (other->rung.supports & GUMBEL_CAPABILITY_PRODUCT) != 0;
        gumbel_text_add_refusal(text, &other->rung, stores ? required : plan->required,
                                other->refuses ? other->refuses(cuda, p) : "");
    }
    if (plan->rows) {
        gumbel_text_add(text, "  stored, as drawing between tiles does not support ");
        gumbel_text_add_capabilities(text, plan->required & ~plan->product->rung.supports);
        gumbel_text_add(text, "\n");
    }
}

static void add_rows(gumbel_text *text, const cuda_device *cuda, const gumbel_problem *p,
                     const cuda_plan *plan)
{
    uint64_t required = plan->required & ~CAPABILITIES_OF_STORE;
    uint32_t offered = plan->product && plan->product->offers ? plan->product->offers(p) : 0;
    int turn = 0;
    add_choice(text, "rows", &plan->rows->rung);
    for (int i; (i = next_rung(cuda, CUDA_PRODUCTS, CUDA_ROW_RUNGS, &turn)) >= 0;) {
        const cuda_rows *other = &cuda_row_rungs[i];
        if (other == plan->rows)
            break;
        gumbel_text_add_refusal(text, &other->rung, required,
                                other->refuses ? other->refuses(cuda, p, offered) : "");
    }
}

gumbel_status cuda_explain_call(const gumbel_device *device, const gumbel_problem *problem,
                                gumbel_text *text, gumbel_error *error)
{
    const cuda_device *cuda = (const cuda_device *)device;
    gumbel_problem p = cuda_replace_allowed(problem);
    gumbel_cursor cursor = {0};
    cuda_plan plan;
    GUMBEL_FORWARD(cuda_plan_call(&plan, cuda, &p, 0, error));
    cuda_carve_plan(&plan, &cursor, cuda, &p);
    if (plan.product)
        add_products(text, cuda, &p, &plan);
    if (plan.rows)
        add_rows(text, cuda, &p, &plan);
    gumbel_text_add(text, "workspace: %zu bytes\n", cursor.used);
    return GUMBEL_OK;
}
