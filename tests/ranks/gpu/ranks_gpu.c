/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: ranks_gpu RANKS [TEST ...]
 *
 * Tests groups of processes, one GPU each, that exchange through NCCL or peer memory. Draws,
 * verified drafts and replayed graphs must equal those of one GPU with the whole vocabulary. If one
 * rank passes different parameters, hangs or is killed, the others must return an error.
 * script/test-ranks runs the program. Exit code 77: no NCCL, or too few GPUs.
 */
#define _GNU_SOURCE
#include "rank_process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFINE_TESTS(name, setting)                                                                \
    static void name##_plain(void) { peer_memory = setting, draw_plain(); }                        \
    static void name##_requests(void) { peer_memory = setting, draw_requests(); }                  \
    static void name##_common(void) { peer_memory = setting, draw_common_requests(); }             \
    static void name##_drafts(void) { peer_memory = setting, verify_drafts(); }                    \
    static void name##_graph(void) { peer_memory = setting, replay_graphs(); }                     \
    static void name##_fallback(void) { peer_memory = setting, draw_fallback_rows(); }             \
    static void name##_mismatch(void) { peer_memory = setting, draw_with_different_parameters(); } \
    static void name##_hang(void) { peer_memory = setting, draw_with_absent_rank(); }              \
    static void name##_kill(void) { peer_memory = setting, draw_with_killed_rank(); }
DEFINE_TESTS(nccl, GUMBEL_PEERS_OFF)
DEFINE_TESTS(peers, GUMBEL_PEERS_REQUIRE)

static int run_rank(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"nccl_plain", nccl_plain},
        {"nccl_requests", nccl_requests},
        {"nccl_common", nccl_common},
        {"nccl_drafts", nccl_drafts},
        {"nccl_graph", nccl_graph},
        {"nccl_fallback", nccl_fallback},
        {"nccl_mismatch", nccl_mismatch},
        {"nccl_hang", nccl_hang},
        {"peers_plain", peers_plain},
        {"peers_requests", peers_requests},
        {"peers_common", peers_common},
        {"peers_drafts", peers_drafts},
        {"peers_graph", peers_graph},
        {"peers_fallback", peers_fallback},
        {"peers_mismatch", peers_mismatch},
        {"peers_hang", peers_hang},
        {NULL, NULL},
    };
    static const cuda_test fatal[] = {
        {"nccl_kill", nccl_kill}, {"peers_kill", peers_kill}, {NULL, NULL}};
    char device[16], id[GUMBEL_NCCL_ID_BYTES];
    gumbel_error error = {"", ""};
    snprintf(device, sizeof device, "%d", (int)rank);
    setenv("CUDA_VISIBLE_DEVICES", device, 1);
    if (gumbel_nccl_id(id, &error) != GUMBEL_OK) {
        printf("skipped: %s\n", error.message);
        return SKIPPED;
    }
    return cuda_run_tests(argc, argv, argc > 1 && strstr(argv[1], "_kill") ? fatal : tests);
}

int main(int argc, char **argv)
{
    int result = 0;
    ranks = argc > 1 ? atoi(argv[1]) : 2;
    if (ranks < 1 || ranks > RANKS_MAX || !share_nccl_ids())
        return 2;
    fflush(stdout);
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0)
            _exit(run_rank(argc - 1, argv + 1));
    for (int status; wait(&status) > 0;) {
        int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        int code = WIFEXITED(status)                                        ? WEXITSTATUS(status)
                   : killed && argc > 2 && strstr(argv[2], "_kill") != NULL ? 0
                                                                            : 1;
        result = code == 1 || result == 1 ? 1 : code > result ? code : result;
    }
    return result;
}
