"""``batchclient simulate``: the embedded server in the foreground."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

import typer

from batchclient.cli._refusal import Refusal
from batchclient.cli._words import put, say
from batchclient.jobs.statuses import Status

__all__ = ["simulate"]


def simulate(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 8000,
    profile: Annotated[str, typer.Option(help="The speed of the server; --profiles lists them.")] = "gpu",
    model: Annotated[str, typer.Option(help="The name of the served model. Others are served, too.")] = "simulated",
    max_model_len: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt and its answer together, at most.")
    ] = 32_768,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Sequences running at once (default: the profile's).")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Size of the KV cache, tokens (default: the profile's).")
    ] = None,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(help="503 above this many sequences (default: none).")
    ] = None,
    max_body_bytes: Annotated[
        int | None, typer.Option(min=1, help="413 for a longer body (default: the real server's length, else 64 MiB).")
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help="A fault, as status=503,rate=0.05; repeatable.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Demand this key.", envvar="BATCHCLIENT_SIMULATE_API_KEY")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    speed: Annotated[float, typer.Option(help="Run this many times as fast as the profile.")] = 1.0,
    output_lengths: Annotated[
        str, typer.Option(help="Tokens of an answer: lognormal:MEAN:SIGMA, or fixed, which is max_tokens.")
    ] = "lognormal:8:0.4",
    thinking_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that are thought before each answer, between <think> and </think>.")
    ] = 0,
    reasoning_parser: Annotated[
        bool, typer.Option("--reasoning-parser", help="Part reasoning from answers, and hold budgets for it.")
    ] = False,
    guise: Annotated[str, typer.Option(help="The server to imitate (paths, bodies, limits): vllm or tgi.")] = "vllm",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse other models' names, tools and pictures.")] = False,
    profiles: Annotated[bool, typer.Option("--profiles", help="List the profiles and exit.")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="List the faults and exit.")] = False,
) -> None:
    """Serve a simulated vLLM or TGI: real HTTP with a cost model instead of a GPU.

    It serves each model's name, calls tools and takes pictures; with --strict it refuses them.
    """
    from batchclient.simulator.faults import KINDS
    from batchclient.simulator.profiles import PROFILES

    if profiles:
        _list({name: each.summary for name, each in PROFILES.items()})
        return
    if faults:
        _list(KINDS)
        return
    from batchclient.simulator.app import listen, serve
    from batchclient.simulator.server import SimulatedServer

    try:
        server = SimulatedServer(
            profile,
            model=model,
            max_model_len_tokens=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_tokens=kv_tokens,
            max_queued=max_num_queued_reqs,
            max_body_bytes=max_body_bytes,
            faults=fault or [],
            api_key=api_key,
            seed=seed,
            speed=speed,
            output_lengths=output_lengths,
            thinking_tokens=thinking_tokens,
            reasoning_parser=reasoning_parser,
            guise=guise,
            epoch_s=time.time(),
            is_strict=strict,
        )
    except ValueError as error:
        raise Refusal(str(error)) from None
    place = f"[{host}]" if ":" in host else host
    try:
        listener = listen(host, port)
    except OSError as error:
        raise Refusal(f"cannot listen on {place}:{port}: {error.strerror or error}") from None

    def announce() -> None:
        say(
            f"simulated server, model {server.model}, as fast as {server.profile.name}: http://{place}:{listener.getsockname()[1]}/v1",
            event="serving",
        )

    try:
        with listener:
            serve(server, listener, announce)
    except (ImportError, OSError) as error:
        raise Refusal(str(error), Status.FAILED) from None


def _list(rows: Mapping[str, str]) -> None:
    width = max(map(len, rows))
    put(*(f"{name:{width}}  {summary}" for name, summary in rows.items()))
