/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests from logits, what the draw sees of them, and the histories that they count.
 */
#include "maths/edits.h"
#include "core/fail.h"
#include "cuda/plan/cuda_run.h"

/* Tokens from a block's first one to the end of those that count. */
static int64_t range_of(const gumbel_problem *p)
{
    int64_t origin = p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    return p->end_token > origin ? p->end_token - origin : 1;
}

/* Shared memory of a CTA that holds a share of a row. */
static int64_t team_bytes(const gumbel_problem *p)
{
    return CUDA_REQUEST_ROOM_BYTES + cuda_request_share(range_of(p)) * (int64_t)sizeof(float);
}

/* Whether a cluster can hold a row. */
static int team_serves(const cuda_device *cuda, const gumbel_problem *p)
{
    return cuda->request_team && team_bytes(p) <= cuda_request_team_bytes(cuda->shared_bytes);
}

/* Whether edited logits are all that is asked for beyond a plain draw. */
static int edits_alone(const gumbel_problem *p)
{
    return !(p->request & ~(uint32_t)GUMBEL_REQUEST_TRANSFORMS) && p->end_token > p->first_token;
}

/* Whether edits come from lists, too. */
static int edits_by_lists(const gumbel_problem *p)
{
    return (p->request & (GUMBEL_REQUEST_BANNED | GUMBEL_REQUEST_BIAS)) ||
           ((p->request & GUMBEL_REQUEST_PENALTIES) && !p->history.prompt);
}

/* Whether a draw from logits edits them itself: where the tokens that it scores are enough, and no
 * list says how. */
static int draw_edits(const gumbel_problem *p)
{
    return edits_alone(p) && !edits_by_lists(p) && !p->with_mass && !p->sampling.noise;
}

int64_t cuda_request_blocks(const gumbel_problem *p)
{
    int64_t range = p->end_token - CUDA_REQUEST_ORIGIN(p->first_token);
    return (range + CUDA_REQUEST_BLOCK - 1) / CUDA_REQUEST_BLOCK;
}

/* Whether the largest logits of blocks can tell which tokens of a row matter, as far as the host
 * knows: rows' own numbers may still say that all do. */
static int blocks_tell(const cuda_device *cuda, const gumbel_problem *p)
{
    const gumbel_truncation *t = &p->truncation;
    int joint = t->order == GUMBEL_ORDER_JOINT && t->top_p;
    int64_t bytes = cuda_request_blocks_bytes(cuda_request_blocks(p));
    return team_serves(cuda, p) && bytes <= CUDA_REQUEST_BLOCKS_BYTES && (t->top_k || t->min_p) &&
           !joint && !edits_by_lists(p) && p->scale > 0.0f && !(p->request & GUMBEL_REQUEST_RAW) &&
           p->end_token > p->first_token;
}

/* CTAs that share a row which is drawn before it is cut, and words of what all of them tell. */
static int64_t pivot_parts(const gumbel_problem *p)
{
    return cuda_request_pivot_parts(range_of(p));
}

static size_t told_words(const gumbel_problem *p)
{
    return (size_t)cuda_request_told_words(p->batch, pivot_parts(p));
}

void cuda_clear_told(cuda_params *draw, const cuda_request_room *room)
{
    draw->cleared = room->told;
    draw->cleared_words = room->told ? (int64_t)told_words(&draw->problem) : 0;
}

/* Whether rows may be drawn before they are cut, as far as the host knows: tokens are all that is
 * asked for, and a top_p all that cuts. The CTAs of a row should run at once. */
static int pivots_serve(const cuda_device *cuda, const gumbel_problem *p)
{
    const gumbel_truncation *t = &p->truncation;
    const gumbel_sampling *s = &p->sampling;
    return p->request == GUMBEL_REQUEST_TRUNCATION && !p->with_mass && t->top_p && !t->top_k &&
           !t->min_p && t->ties == GUMBEL_TIES_ALL && s->num_samples == 1 && !s->noise &&
           s->math == GUMBEL_MATH_EXACT && p->soft_cap == 0.0f && p->end_token > p->first_token &&
           pivot_parts(p) <= cuda->multiprocessors;
}

/* Elements from one row of edited logits to the next. */
static int64_t edited_stride(const gumbel_problem *p) { return (p->vocab + 3) / 4 * 4; }

/* CTAs a row, and the tokens that each takes. */
typedef struct request_split {
    int64_t parts, chunk;
} request_split;

static request_split split_rows(const cuda_device *cuda, const gumbel_problem *p)
{
    int64_t range = range_of(p);
    int64_t ctas = (int64_t)cuda->multiprocessors * CUDA_REQUEST_CTAS;
    int64_t most = ctas > p->batch ? ctas / p->batch : 1;
    request_split split = {.chunk = cuda_chunk(range, most, CUDA_REQUEST_PIECE)};
    split.parts = (range + split.chunk - 1) / split.chunk;
    return split;
}

/* What a product that stores by bounds and its request share, where that is allowed. */
static void carve_bounds(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                         cuda_request_room *room)
{
    size_t blocks = (size_t)cuda_request_blocks(p), rows = 32 * (size_t)gumbel_words_of(p->batch);
    int64_t tiles = (int64_t)blocks / cuda->multiprocessors;
    /* A soft-cap can make equals of what is above a bound and below it. */
    int can_fail = p->soft_cap != 0.0f;
    if (cuda->recompute == GUMBEL_RECOMPUTE_NEVER || p->weight.rows == 0 ||
        (can_fail && cuda->recompute != GUMBEL_RECOMPUTE_ALLOWED) ||
        !cuda_request_bounds(p->batch, tiles, can_fail))
        return;
    room->written = gumbel_carve(cursor, blocks, rows, sizeof *room->written);
    if (p->request & GUMBEL_REQUEST_PENALTIES)
        room->unseen = gumbel_carve(cursor, (size_t)p->batch, blocks, sizeof *room->unseen);
    if (can_fail)
        room->again = gumbel_carve(cursor, 1, 1, sizeof *room->again);
}

cuda_request_room cuda_carve_request(gumbel_cursor *cursor, const cuda_device *cuda,
                                     const gumbel_problem *problem, int edited_in_place)
{
    size_t batch = (size_t)problem->batch, parts = (size_t)split_rows(cuda, problem).parts;
    size_t bytes = CUDA_REQUEST_LIST * sizeof(cuda_candidate);
    cuda_request_room room = {NULL};
    if (draw_edits(problem))
        return room;
    if (edits_alone(problem)) {
        size_t rows = edited_in_place ? 0 : (size_t)problem->batch;
        room.edited = gumbel_carve(cursor, rows, (size_t)edited_stride(problem), sizeof(float));
        return room;
    }
    if (blocks_tell(cuda, problem)) {
        size_t blocks = (size_t)cuda_request_blocks(problem);
        room.peaks = gumbel_carve(cursor, batch, blocks, sizeof(float));
        room.left = gumbel_carve(cursor, batch, 1, sizeof(int32_t));
        carve_bounds(cursor, cuda, problem, &room);
        room.counters = gumbel_carve(cursor, batch, CUDA_FLOOR_WORDS, sizeof *room.counters);
    }
    if (pivots_serve(cuda, problem)) {
        room.told = gumbel_carve(cursor, told_words(problem), 1, sizeof *room.told);
        return room;
    }
    if (team_serves(cuda, problem))
        return room;
    room.counters = gumbel_carve(cursor, batch, CUDA_FLOOR_WORDS, sizeof *room.counters);
    room.heads = gumbel_carve(cursor, batch, parts, sizeof *room.heads);
    room.candidates = gumbel_carve(cursor, parts > 1 ? batch : 0, parts, bytes);
    return room;
}

/* Queue a kernel that takes p->parts CTAs for each of `rows`, or as many at a time. */
static gumbel_status run_rows(const cuda_job *job, cuda_request_params *p, int64_t rows,
                              CUfunction kernel, int threads, int shared_bytes, int overlaps)
{
    void *arguments[] = {p};
    if (p->problem.batch > INT32_MAX / p->parts)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B is more than one call on CUDA takes");
    cuda_shape shape = {rows * p->parts, threads, shared_bytes, overlaps};
    return cuda_launch(job, kernel, shape, arguments);
}

/* Queue a kernel that takes p->parts CTAs a row. */
static gumbel_status run(const cuda_job *job, cuda_request_params *p, CUfunction kernel,
                         int shared_bytes, int overlaps)
{
    return run_rows(job, p, p->problem.batch, kernel, CUDA_REQUEST_THREADS, shared_bytes, overlaps);
}

/* By a cluster a row. Where rows may have been served already, as many as keep the GPU busy look
 * for those that are left. */
static gumbel_status run_team(const cuda_job *job, cuda_request_params *p)
{
    const gumbel_problem *q = &p->problem;
    int64_t clusters = q->batch;
    if (p->left)
        clusters = cuda_request_clusters_left(clusters, job->cuda->multiprocessors, p->peaked != 0);
    p->parts = CUDA_REQUEST_CLUSTER;
    p->chunk = cuda_request_share(range_of(q));
    return run_rows(job, p, clusters, job->cuda->request_team, CUDA_REQUEST_THREADS,
                    (int)team_bytes(q), 1);
}

/* By a CTA a row that looks into few of its blocks, and what is left by clusters. */
static gumbel_status run_blocks(const cuda_job *job, cuda_request_params *p,
                                const cuda_request_room *room)
{
    const gumbel_problem *q = &p->problem;
    p->blocks = cuda_request_blocks(q);
    p->peaks = room->peaks;
    p->left = room->left;
    p->counters = room->counters;
    p->tag = cuda_tag(job->cuda);
    p->peaked = job->params.peaks != NULL;
    if (p->peaked && room->written) {
        p->written = room->written;
        p->unseen = room->unseen;
        p->again = room->again;
        p->floors = job->params.shared_floors;
    }
    p->chunk =
        p->peaked ? p->blocks : cuda_request_part(p->blocks, q->batch, job->cuda->multiprocessors);
    p->parts = (int32_t)((p->blocks + p->chunk - 1) / p->chunk);
    GUMBEL_FORWARD(run(job, p, p->written ? job->cuda->request_bounded : job->cuda->request_blocks,
                       (int)cuda_request_blocks_bytes(p->blocks), 1));
    if (job->again)
        GUMBEL_FORWARD(cuda_run_sm90(job->again));
    return run_team(job, p);
}

/* By a plain draw, unless the product has made it, and pivots from its tokens on. */
static gumbel_status run_pivots(const cuda_job *job, cuda_request_params *p,
                                const cuda_request_room *room)
{
    cuda_job draw = *job;
    draw.params.problem.request = 0;
    draw.params.stored = NULL;
    cuda_clear_told(&draw.params, room);
    if (!job->params.draws_too)
        GUMBEL_FORWARD(cuda_run_logits(&draw));
    p->told = room->told;
    p->parts = (int32_t)pivot_parts(&p->problem);
    return run_rows(job, p, p->problem.batch, job->cuda->request_pivots, CUDA_REQUEST_PIVOT_THREADS,
                    CUDA_REQUEST_PIVOT_BYTES, 1);
}

/* By a CTA a row, whatever is asked. */
static gumbel_status run_naive(const cuda_job *job, cuda_request_params *p)
{
    p->parts = 1;
    return run(job, p, job->cuda->request_naive, CUDA_REQUEST_STAGE_BYTES, 0);
}

/* Edit the logits, in place where they are the backend's own, and draw from them. */
static gumbel_status run_edited(const cuda_job *job, cuda_request_params *p, float *edited,
                                int64_t stride)
{
    cuda_job draw = *job;
    gumbel_problem *q = &draw.params.problem;
    p->processed = edited;
    p->processed_stride = stride;
    p->parts = (int32_t)((range_of(&p->problem) + CUDA_REQUEST_PIECE - 1) / CUDA_REQUEST_PIECE);
    GUMBEL_FORWARD(run(job, p, job->cuda->request_edit, CUDA_REQUEST_STAGE_BYTES, 1));
    q->request = 0;
    q->scale = 1.0f;
    q->soft_cap = draw.params.inverse_cap = 0.0f;
    q->logits = (gumbel_tensor){edited, GUMBEL_FLOAT32, q->batch, q->vocab, stride};
    draw.params.stored = NULL;
    return cuda_run_logits(&draw);
}

gumbel_status cuda_run_request(const cuda_job *job, gumbel_cursor rest)
{
    const cuda_params *call = &job->params;
    cuda_request_params p = {
        .problem = call->problem,
        .inverse_cap = call->inverse_cap,
        .output = call->output,
        .partials = call->partials,
    };
    cuda_request_room room = cuda_carve_request(&rest, job->cuda, &p.problem, call->stored != NULL);
    if (draw_edits(&p.problem)) {
        cuda_job draw = *job;
        draw.params.stored = NULL;
        return cuda_run_logits(&draw);
    }
    if (edits_alone(&p.problem))
        return run_edited(job, &p, call->stored ? call->stored : room.edited,
                          call->stored ? call->stored_stride : edited_stride(&p.problem));
    if (room.told)
        return run_pivots(job, &p, &room);
    if (room.left && (call->peaks || p.problem.batch >= CUDA_REQUEST_BLOCKS_BATCH))
        return run_blocks(job, &p, &room);
    if (team_serves(job->cuda, &p.problem))
        return run_team(job, &p);
    if (p.partials)
        return run_naive(job, &p);
    request_split split = split_rows(job->cuda, &p.problem);
    p.parts = (int32_t)split.parts;
    p.chunk = split.chunk;
    p.tag = cuda_tag(job->cuda);
    p.counters = room.counters;
    p.heads = room.heads;
    p.candidates = room.candidates;
    return run(job, &p, job->cuda->request, CUDA_REQUEST_SHARED_BYTES, 1);
}

gumbel_status cuda_process(gumbel_device *device, const gumbel_problem *problem, float *processed,
                           int64_t stride, void *workspace, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = problem->sampling.stream, .error = error};
    cuda_request_params p = {
        .problem = *problem,
        .inverse_cap = cuda_inverse_cap(problem),
        .processed = processed,
        .processed_stride = stride,
    };
    CUcontext popped;
    (void)workspace;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = team_serves(cuda, problem) ? run_team(&job, &p) : run_naive(&job, &p);
    cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

/* Queue one of the history's kernels. */
static gumbel_status run_history(cuda_device *cuda, CUfunction kernel, int64_t ctas,
                                 cuda_history_params *p, void *stream, gumbel_error *error)
{
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    if (ctas > INT32_MAX)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "so many rows are more than one call on CUDA takes");
    return cuda_launch_alone(&job, kernel, ctas, p);
}

gumbel_status cuda_history_start(gumbel_device *device, const gumbel_history *history,
                                 int64_t batch, const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, void *stream,
                                 gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_history_params p = {
        .history = *history, .batch = batch, .prompts = *prompts, .outputs = *outputs};
    p.pieces = (history->vocab_size + CUDA_HISTORY_PIECE - 1) / CUDA_HISTORY_PIECE;
    return run_history(cuda, cuda->history_start, p.pieces * batch, &p, stream, error);
}

gumbel_status cuda_history_update(gumbel_device *device, const gumbel_history *history,
                                  int64_t batch, const int32_t *tokens, int64_t token_stride,
                                  void *stream, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_history_params p = {
        .history = *history, .batch = batch, .tokens = tokens, .token_stride = token_stride};
    int64_t ctas = (batch + CUDA_THREADS - 1) / CUDA_THREADS;
    return run_history(cuda, cuda->history_update, ctas, &p, stream, error);
}
