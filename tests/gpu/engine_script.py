"""The same work without HTTP or client: ``vllm.LLM.generate``, run by vLLM's own Python. Reads a job (JSON) and prints a line of results."""

import json
import sys
import time


def main() -> None:
    job = json.load(sys.stdin)
    from vllm import LLM, SamplingParams  # seconds, and only this process pays them

    where = {"enforce_eager": True, "max_num_seqs": 64}
    if job["device"] != "cpu":
        where = {"gpu_memory_utilization": job["memory"], "dtype": "bfloat16"}
    engine = LLM(job["model"], max_model_len=job["max_model_len"], **where)
    results = []
    for max_tokens, prompts in job["cases"]:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        engine.generate([f"warm up {i}" for i in range(32)], sampling, use_tqdm=False)
        started = time.perf_counter()
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        assert tokens == max_tokens * len(prompts)
        results.append({"max_tokens": max_tokens, "prompts": len(prompts), "tokens": tokens, "seconds": seconds})
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
