# SPDX-License-Identifier: Apache-2.0
"""The parts of gumbel.vllm.

| module | content |
|---|---|
| support | configurations that are supported |
| vllm_versions, self_check | differences between versions; checks of newer ones |
| vllm_hooks | register(), which installs the hooks of the modules below |
| runner_v1, runner_v2 | hooks of the two model runners: steps, samplers, drafts, grammars |
| lazy | logits that are multiplied only when vLLM reads them |
| draw_parameters | sampling parameters of a step, as the library takes them |
| requests_v1, requests_v2, masks | read them from the runners |
| batch_history, slot_history | the tokens that penalties count, of the V1 and the V2 runner |
| request_rules, rule_devices | rules of requests (extra_args), checked where requests arrive |
| dry, dry_lists | DRY of requests: its keys and breakers, its token lists |
| drafting | drafts that are drawn with the noise of the target |
| draft_requests | min_p and logit_bias of requests under drafts |
| drawer | draws from hidden states if the logits were not read, else from logits |
| ranks | vLLM's ranks of tokens |
| kept_tokens | vLLM's sampling masks: the tokens that truncation keeps |
| groups | draws over the shards of a head under tensor parallelism |
| memory | the workspace of an engine's draws |
| head_screens, weights | screens of heads on a CPU; detection of changed weights |
| faults, counts, threads | rows without a token; counts of steps; threads of the library |

Every draw of a supported runner is the library's, with the noise of its seed and position, even if
vLLM has changed the logits before. Parameters of one request therefore change no other request's
text. Hooks replace functions of vLLM by name, once a process. A hook checks whether the runner's
configuration is supported and otherwise calls the function that it replaced.

The position of a draw is the index of the input token whose logits are drawn from, counted from 0
at the prompt's first token. Requests without a seed get one from vLLM or from torch.
"""
