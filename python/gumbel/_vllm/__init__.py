# SPDX-License-Identifier: Apache-2.0
"""What gumbel.vllm is made of.

register() waits for a worker to be made, and then hooks the runners (support). From then on a step
goes through the hooks of its kind (runner_v1, runner_v2): the LM head's product is put off (lazy),
what requests ask for is said in the library's terms (requests_v1, requests_v2; masks), and draws
are made from hidden states where nobody has looked at the logits, else from those (drawer, on
the threads that vLLM has: threads), and counted (counts). Of a head that is split over ranks each
draws its part, by a group (groups).

Every draw of a runner that is served is the library's own, with the noise of its seed and position,
however much of vLLM's code has changed the logits before: so what one request asks for changes no
other's text. Hooks replace functions of vLLM by name, once a process, and ask of each runner
whether its configuration is served; where it is not, they call what they replaced.

Position is the index of the input token whose logits are drawn from, counted from 0 at the prompt's
first token. Seeds are those of the requests; those without one get theirs from vLLM or from torch.
"""
