/* SPDX-License-Identifier: Apache-2.0
 *
 * The fused way on Hopper: tensor maps, and slices of the batch that one launch takes. And the
 * screened draw: hidden states are split into planes, what can win is found by the screen and
 * scored by the full product, and behind that stands the full pass, for calls that a screen does
 * not tell.
 */
#include "core/fail.h"
#include "cuda/fused/screen/screen_params.h"
#include "cuda/run/cuda_run.h"

static CUtensorMapDataType map_dtype(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

static gumbel_status encode(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t, int rank,
                            const cuuint64_t *sizes, const cuuint64_t *strides,
                            const cuuint32_t *box)
{
    static const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    CUDA_TRY(&job->cuda->driver, job->error, cuTensorMapEncodeTiled, map, map_dtype(t->dtype),
             (cuuint32_t)rank, (void *)(uintptr_t)t->data, sizes, strides, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return GUMBEL_OK;
}

/* Weight row 16 d + 4 b + 2 a + c at (d, c, b, a): the order that the kernel's head explains. */
static gumbel_status encode_weight(const cuda_job *job, CUtensorMap *map)
{
    const gumbel_tensor *t = &job->params.problem.weight;
    cuuint64_t row = (cuuint64_t)t->stride * sizeof(uint16_t);
    cuuint64_t sizes[5] = {(cuuint64_t)t->cols, 2, 4, 2, (cuuint64_t)t->rows / 16};
    cuuint64_t strides[4] = {2 * row, 4 * row, row, 16 * row};
    cuuint32_t box[5] = {64, 2, 4, 2, CUDA_SM90_TILE / 16};
    return encode(job, map, t, 5, sizes, strides, box);
}

/* So many rows a copy. */
static gumbel_status encode_hidden(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t,
                                   int rows)
{
    cuuint64_t sizes[2] = {(cuuint64_t)t->cols, (cuuint64_t)t->rows};
    cuuint64_t strides[1] = {(cuuint64_t)t->stride * sizeof(uint16_t)};
    cuuint32_t box[2] = {64, (cuuint32_t)rows};
    return encode(job, map, t, 2, sizes, strides, box);
}

/* What a pass behind another one goes by (fused_again_sm90.cu): a word, or rows of which any is
 * left and bounded. All NULL: it is not one of these. */
typedef struct pass_needs {
    const uint32_t *again;
    const int32_t *left, *bounded;
} pass_needs;

/* Draw, or store, where it is needed by then. */
static gumbel_status run_if(const cuda_job *job, pass_needs needs)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *whole = &job->params.problem;
    CUtensorMap weight, hidden;
    int32_t samples = job->params.stored ? 1 : whole->sampling.num_samples;
    int64_t most = cuda_sm90_rows_most(samples);
    int64_t tokens = whole->end_token - whole->first_token;
    int32_t tiles = (int32_t)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    int processors = cuda_sm90_processors(cuda->multiprocessors);
    GUMBEL_ASSERT(tokens > 0 && tiles > 0 && most > 0);
    GUMBEL_ASSERT(whole->weight.rows % 16 == 0 && whole->weight.dtype != GUMBEL_FLOAT32);
    GUMBEL_ASSERT(whole->hidden.dtype == whole->weight.dtype);
    GUMBEL_FORWARD(encode_weight(job, &weight));
    for (int64_t first = 0; first < whole->batch; first += most) {
        int64_t rows = whole->batch - first < most ? whole->batch - first : most;
        int place = cuda_sm90_width_for(rows), width = cuda_sm90_widths[place];
        cuda_params p = cuda_slice(&job->params, first, rows);
        p.tiles = tiles;
        p.parts = cuda_sm90_ctas(width, tiles, processors);
        p.stages = cuda_sm90_stages(width, samples, p.problem.with_mass, p.stored && !p.draws_too);
        GUMBEL_ASSERT(rows <= width && p.stages >= 1);
        GUMBEL_ASSERT(p.parts >= 1 && p.parts <= cuda->multiprocessors);
        GUMBEL_ASSERT((size_t)p.parts * (size_t)rows * (size_t)samples <=
                      job->workspace.summaries_most);
        p.tag = cuda_tag(cuda);
        GUMBEL_FORWARD(
            encode_hidden(job, &hidden, &p.problem.hidden, width / CUDA_SM90_CLUSTER(width)));
        void *drawn[] = {&p, &weight, &hidden, &needs.again};
        void *stored[] = {&p, &weight, &hidden, &needs.left, &needs.bounded};
        cuda_shape shape = {p.parts, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES,
                            CUDA_SM90_OVERLAPS(width)};
        cuda_sm90_case kind =
            cuda_sm90_case_of(whole, p.stored != NULL, p.draws_too, p.multiply_only);
        const cuda_dtype dtype = cuda_dtype_of(whole->weight.dtype);
        GUMBEL_ASSERT(!needs.again || kind == CUDA_SM90_PLAIN);
        GUMBEL_ASSERT(!needs.left || (kind == CUDA_SM90_STORED && rows == whole->batch));
        CUfunction kernel = needs.again  ? cuda->fused_again[dtype][place]
                            : needs.left ? cuda->store_again[dtype][place]
                                         : cuda->fused_sm90[dtype][place][kind];
        GUMBEL_FORWARD(cuda_launch(job, kernel, shape, needs.left ? stored : drawn));
        if (!CUDA_SM90_ENDS(kind, p.partials))
            GUMBEL_FORWARD(cuda_finish(job, &p));
    }
    return GUMBEL_OK;
}

gumbel_status cuda_run_sm90(const cuda_job *job) { return run_if(job, (pass_needs){NULL}); }

gumbel_status cuda_run_sm90_again(const cuda_job *job, const uint32_t *again)
{
    GUMBEL_ASSERT(again && job->params.problem.batch <= CUDA_SCREEN_ROWS_MOST);
    return run_if(job, (pass_needs){.again = again});
}

gumbel_status cuda_run_sm90_store_again(const cuda_job *job, const int32_t *left,
                                        const int32_t *bounded)
{
    GUMBEL_ASSERT(left && bounded && job->params.stored && !job->params.stored_strips);
    GUMBEL_ASSERT(job->params.problem.batch <= CUDA_SCREEN_ROWS_MOST);
    return run_if(job, (pass_needs){.left = left, .bounded = bounded});
}

/* ---------------------------------------------------------------------------- screened ---- */

/* The narrowest product that holds two planes of so many rows, by its place in the table. */
static int width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SCREEN_WIDTHS - 1 && cuda_screen_widths[i] < 2 * rows)
        i++;
    return i;
}

static int64_t depths_of(const gumbel_problem *p)
{
    return (p->hidden_size + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE;
}

void cuda_carve_screen(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    size_t width = (size_t)cuda_screen_widths[width_for(p->batch)];
    size_t groups = ((size_t)p->batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    cuda_screen_pieces *pieces = &workspace->screen;
    (void)cuda;
    pieces->planes = gumbel_carve(cursor, (size_t)depths_of(p), width, CUDA_SCREEN_TILE);
    pieces->reaches = gumbel_carve(cursor, width, 1, sizeof *pieces->reaches);
    pieces->state = gumbel_carve(cursor, 1, 1, sizeof *pieces->state);
    pieces->entries =
        gumbel_carve(cursor, groups, CUDA_SCREEN_LISTED_MOST, sizeof *pieces->entries);
}

gumbel_status cuda_run_screen(const cuda_job *job)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_pieces *pieces = &job->workspace.screen;
    const char *screen = q->screen;
    const int64_t tokens = q->end_token - q->first_token;
    const int place = width_for(q->batch);
    gumbel_screen_parts parts;
    int known =
        gumbel_screen_lay_out_as(GUMBEL_SCREEN_LAYOUT_TILES, q->vocab, q->hidden_size, &parts);
    GUMBEL_ASSERT(known && tokens > 0 && q->batch <= CUDA_SCREEN_ROWS_MOST);
    GUMBEL_ASSERT(pieces->planes && pieces->reaches && pieces->state && pieces->entries);
    (void)known;
    cuda_screen_params s = {.call = cuda_slice(&job->params, 0, q->batch),
                            .header = (const void *)screen,
                            .bounds = (const void *)(screen + parts.bounds),
                            .steps = (const void *)(screen + parts.steps),
                            .copy = (const void *)(screen + parts.copy),
                            .depths = (int32_t)depths_of(q),
                            .width = cuda_screen_widths[place],
                            .gamma = CUDA_SCREEN_GAMMA(q->hidden_size),
                            .planes = pieces->planes,
                            .reaches = pieces->reaches,
                            .state = pieces->state,
                            .entries = pieces->entries};
    const int processors = cuda_sm90_processors(cuda->multiprocessors);
    s.call.tiles = (int32_t)((tokens + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    s.call.stages = cuda_screen_stages(s.width);
    s.call.tag = cuda_tag(cuda);
    GUMBEL_ASSERT(s.call.tiles <= parts.blocks * GUMBEL_BLOCK / CUDA_SCREEN_TILE);
    void *arguments[] = {&s};
    cuda_shape split = {s.width / 2, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, 1};
    cuda_shape draw = {s.call.tiles < processors ? s.call.tiles : processors, CUDA_SM90_THREADS,
                       CUDA_SM90_SHARED_BYTES, 1};
    cuda_shape score = {cuda->multiprocessors > CUDA_SCREEN_GROUPS ? cuda->multiprocessors
                                                                   : CUDA_SCREEN_GROUPS,
                        CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES, 1};
    const cuda_dtype dtype = cuda_dtype_of(q->weight.dtype);
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_split, split, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_draw[place], draw, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_score[dtype], score, arguments));
    return cuda_run_sm90_again(job, &pieces->state->again);
}
