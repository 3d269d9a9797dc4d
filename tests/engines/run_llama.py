"""Run llama.cpp on a model, in the engines' own environment: prints one JSON object, its text, tokens and logprobs.

    python run_llama.py MODEL mmap|none|direct_io [--tokens N] [--user NAME]

llama.cpp is unmodified (xllamacpp has its server in this process). `--user`: be this user before the model is opened.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any

PROMPT = [1, 3, 40, 71, 104, 300, 301]
"""Token numbers that every model here has."""

TOP = 5


def become(name: str) -> None:
    """Be this user from now on, in all ids and without any capability."""
    import pwd  # Windows has none, and runs this too

    user = pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


def parameters(llama: Any, model: str, mode: str) -> Any:
    """llama.cpp's parameters: everything that could differ between two runs is fixed."""
    chosen = llama.CommonParams()
    chosen.model.path = model
    chosen.load_mode = getattr(llama.llama_load_mode, f"LLAMA_LOAD_MODE_{mode.upper()}")
    chosen.n_ctx = 256
    chosen.n_parallel = 1
    chosen.warmup = False
    chosen.fit_params = False
    chosen.cpuparams.n_threads = 1
    chosen.cpuparams_batch.n_threads = 1
    chosen.endpoint_metrics = False
    chosen.verbosity = -1
    return chosen


def complete(llama: Any, model: str, mode: str, tokens: int) -> dict[str, Any]:
    """Greedy completion of PROMPT: per token its number, and number and logprob of the TOP likeliest."""
    server = llama.Server(parameters(llama, model, mode))
    request = {
        "prompt": PROMPT,
        "n_predict": tokens,
        "temperature": 0.0,
        "top_k": 1,
        "seed": 1,
        "cache_prompt": False,
        "ignore_eos": True,
        "logprobs": TOP,
        "n_probs": TOP,
    }
    answer = server.handle_completions(request)
    if isinstance(answer, str):
        answer = json.loads(answer)
    if "choices" not in answer:
        raise SystemExit(f"llama.cpp did not complete: {answer}")
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    return {
        "text": choice["text"],
        "tokens": [step["id"] for step in content],
        "logprobs": [[[top["id"], top["logprob"]] for top in step["top_logprobs"]] for step in content],
        "uid": getattr(os, "getuid", int)(),
    }


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("mode", choices=["mmap", "none", "direct_io"])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--user")
    arguments = parser.parse_args()
    llama = importlib.import_module("xllamacpp")
    if arguments.user is not None:
        # After the import: the interpreter may lie where that user cannot read. The model is read after it.
        become(arguments.user)
    print(json.dumps(complete(llama, arguments.model, arguments.mode, arguments.tokens)))
    sys.stdout.flush()
    os._exit(0)  # the server's threads are not waited for


if __name__ == "__main__":
    main()
