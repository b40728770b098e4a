/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the benchmarks on an NVIDIA GPU: their options, and the file of their results.
 */
#pragma once

#include "cuda_measure.cuh"

/* Opens a file of results and writes its first fields: question, commit, machine, and the rungs
 * that the environment selects. */
static FILE *begin_results(const char *path, const char *question, const char *commit)
{
    cudaDeviceProp gpu;
    char driver[64];
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    FILE *file = fopen(path, "w");
    if (!file)
        die("%s: cannot be written", path);
    fprintf(file, "{\n  \"question\": \"%s\",\n  \"version\": \"%s\",\n", question,
            gumbel_version_string());
    fprintf(file, "  \"commit\": \"%s\",\n  \"gpu\": \"%s\",\n  \"driver\": \"%s\",\n", commit,
            gpu.name, driver);
    const char *rungs = getenv("GUMBEL_RUNGS"); /* names alone, if a device was opened */
    if (rungs && *rungs)
        fprintf(file, "  \"gumbel_rungs\": \"%s\",\n", rungs);
    fprintf(file, "  \"calls_a_replay\": %d,\n  \"replays\": %d,\n", CALLS, REPLAYS);
    return file;
}

[[maybe_unused]] static void write_spread(FILE *file, const char *name, const spread &s)
{
    fprintf(file, "\"%s\": {\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f}", name,
            s.median, s.p10, s.p90);
}

static void close_results(FILE *file, const char *path)
{
    bool failed = ferror(file);
    if (fclose(file) != 0 || failed)
        die("%s: writing failed", path);
}

/* Command line of a bench of requests; an unknown option ends the program. */
struct bench_options {
    const char *json, *commit;
    bool quick;
};

static bench_options read_options(int argc, char **argv)
{
    bench_options o = {nullptr, "unknown", false};
    for (int i = 1; i < argc; i++)
        if (i + 1 < argc && strcmp(argv[i], "--json") == 0)
            o.json = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--commit") == 0)
            o.commit = argv[++i];
        else if (strcmp(argv[i], "--quick") == 0)
            o.quick = true;
        else
            die("%s: the options are --json FILE, --commit TEXT and --quick", argv[i]);
    for (const char *at = o.commit; *at; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            die("--commit: plain ASCII without quotes and backslashes is expected");
    return o;
}
