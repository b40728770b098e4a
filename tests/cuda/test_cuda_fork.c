/* SPDX-License-Identifier: Apache-2.0
 *
 * Children of fork(): calls on a GPU that the parent opened before fork() return an error, closing
 * it does not hang, and the parent can still draw.
 */
#include "cuda_support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds after which a hanging child is killed. */
#define CHILD_SECONDS 20

/* 1 if every call reports that the device does not survive fork(). */
static int refuses_all(problem *p)
{
    float row[64] = {0}, out[64];
    uint32_t words[2] = {0};
    uint64_t position = 0;
    uint16_t counts[64] = {0};
    gumbel_error errors[5] = {{"", ""}};
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(row, GUMBEL_FLOAT32, 1, 64, 0)};
    gumbel_step step = {.struct_size = sizeof step, .batch = 1, .position = &position};
    gumbel_history history = {.struct_size = sizeof history,
                              .vocab_size = 64,
                              .prompt = words,
                              .output = words,
                              .counts = counts};
    outcome *into = outcome_make(p->plan.batch, 1);
    size_t bytes;
    void *workspace = make_workspace(gpu, p->plan.batch, p->plan.hidden_size, 1, &bytes);
    const gumbel_status statuses[] = {
        gumbel_sample(gpu, NULL, &p->head, &p->sampling, &into->output, workspace, bytes,
                      &errors[0]),
        gumbel_process_logits(gpu, NULL, &logits, NULL, out, 0, workspace, bytes, &errors[1]),
        gumbel_prepare_noise(gpu, NULL, NULL, 1, 0, 64, out, 0, &errors[2]),
        gumbel_advance(gpu, NULL, &step, &errors[3]),
        gumbel_history_start(gpu, NULL, &history, 1, NULL, NULL, NULL, &errors[4]),
    };
    int all = gumbel_describe(gpu, &info) == GUMBEL_OK && outcome_untouched(into);
    for (int i = 0; i < 5; i++)
        all &= statuses[i] == GUMBEL_ERROR_DEVICE && strcmp(errors[i].field, "device") == 0;
    return all;
}

static void forks(void)
{
    problem *generated = problem_make(
        &(problem_plan){.batch = 3, .vocab = 500, .hidden_size = 64, .seed = 91, .samples = 1});
    check_problem(generated, "before fork()");
    for (int closes = 0; closes < 2; closes++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_SECONDS);
            int refused = refuses_all(generated);
            if (closes)
                gumbel_close(gpu);
            _exit(!refused);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
        CHECK(WIFEXITED(status), "the child was ended by signal %d", WTERMSIG(status));
        CHECK(WEXITSTATUS(status) == 0, "the child was not refused");
    }
    check_problem(generated, "after fork()");
    problem_free(generated);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {{"forks", forks}, {NULL, NULL}};
    return cuda_run_tests(argc, argv, tests);
}
