"""A client that follows a headless service: a server per pod, as its DNS has them.

python examples/follow_dns.py [HOST PORT MODEL]

With HOST and PORT, such as vllm-pods and 8000, the addresses of HOST are the servers. Without them
embedded servers come and go, as pods do.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from batchclient import BatchClient

CALLS = 300
# One family: a pod of a dual-stack cluster has an address of each, and is one server.
# Where there is no IPv4: AF_INET6.
FAMILY = socket.AF_INET
Resolve = Callable[[], Awaitable[set[str]]]


async def urls_of(host: str, port: int) -> set[str]:
    """Return the URLs of a name's addresses: of a headless service, those of its ready pods."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, family=FAMILY, type=socket.SOCK_STREAM)
    addresses = {str(place[0]) for *_, place in found}
    return {f"http://{f'[{address}]' if ':' in address else address}:{port}/v1" for address in addresses}


async def follow(client: BatchClient, known: set[str], resolve: Resolve, every_s: float = 5.0) -> None:
    """Add and remove servers as they come and go."""
    async with asyncio.TaskGroup() as leaving:
        while True:
            await asyncio.sleep(every_s)
            try:
                present = await resolve()
            except OSError:  # no pod is ready, or no name server answers
                continue
            if not present:  # a client's last server cannot be removed
                continue
            for url in present - known:
                client.add_endpoint(url)  # a server with a key: Server(url, api_key=…)
            for url in known - present:
                # The server still finishes its calls; the calls of a dead one go elsewhere.
                leaving.create_task(client.remove_endpoint(url))
            known = present


async def documents() -> AsyncIterator[str]:
    """Yield documents as they come in."""
    for number in range(CALLS):
        await asyncio.sleep(0.002)
        yield f"document {number}"


async def main(resolve: Resolve, model: str, every_s: float) -> None:
    known = await resolve()
    # In a group: an error of follow ends the program. Unseen, it would leave the servers alone.
    async with BatchClient(sorted(known), model=model) as client, asyncio.TaskGroup() as beside:
        following = beside.create_task(follow(client, known, resolve, every_s))
        answered = 0
        async for row in client.stream_map(documents(), "{}", max_tokens=16):
            answered += row.error is None
        following.cancel()
        print(f"{answered} answers from {len(client.statistics().endpoints)} servers that are here now")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        host, port, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
        asyncio.run(main(lambda: urls_of(host, port), model, every_s=5.0))
    elif len(sys.argv) == 1:
        from batchclient.simulator import EmbeddedServer

        with EmbeddedServer("gpu") as one, EmbeddedServer("gpu") as two, EmbeddedServer("gpu") as three:
            pods = [{one.base_url}, {one.base_url, two.base_url}, {two.base_url, three.base_url}]

            async def stand_in() -> set[str]:
                return pods.pop(0) if len(pods) > 1 else pods[0]

            asyncio.run(main(stand_in, one.model, every_s=0.1))
            print(f"each was asked: {min(server.prompts for server in (one, two, three)) > 0}")
    else:
        sys.exit(f"usage: python {sys.argv[0]} [HOST PORT MODEL]")
