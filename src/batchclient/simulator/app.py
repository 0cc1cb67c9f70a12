"""Running the embedded server: in the foreground, in a thread, or in a process of its own.

Rules:
- ``EmbeddedServer`` listens before ``__enter__`` returns. It keeps its free loopback port for life:
  ``stop`` and ``start`` take the same address down and up again.
- ``stop`` breaks open connections, as a killed server does.
- A child process watches its standard input, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from batchclient.simulator.asgi import SimulatorApp
from batchclient.simulator.faults import Fault
from batchclient.simulator.profiles import Profile
from batchclient.simulator.server import SimulatedServer

if TYPE_CHECKING:
    import uvicorn

__all__ = ["EmbeddedServer", "listen", "run_child", "serve"]

# vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE.
_KEEP_ALIVE_S = 5
_BACKLOG = 2048
_HTTP_TIMEOUT_S = 10.0
# asyncio takes three turns from an accepted socket to a connection known to uvicorn, and one turn
# to close it.
_TURNS_OF_AN_ACCEPT = 5


def serve(server: SimulatedServer, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Run a server in the foreground until it is interrupted.

    Args:
        server: answers the requests.
        listener: a socket that listens (``listen``).
        announce: called before the first request is served.

    Raises:
        ImportError: uvicorn is missing; the extra ``server`` has it.
    """
    runner = _uvicorn(server)
    announce()
    runner.run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        OSError: the port is taken, or the machine has no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; otherwise each reply
    # would take 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _uvicorn(server: SimulatedServer) -> uvicorn.Server:
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("the embedded server needs uvicorn, of the extra batchclient[server]") from error

    config = uvicorn.Config(
        SimulatorApp(server),
        # httptools where installed, else h11, which serves about half as many requests a second.
        http="auto",
        loop="auto",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=0,
        backlog=_BACKLOG,
    )
    return uvicorn.Server(config)


class EmbeddedServer:
    """A simulated server on a loopback port, as a context manager.

    Args:
        profile: the costs; by name, or in a thread as a ``Profile``.
        process: run in a child process, with CPU time of its own; else in a thread.
        faults: as texts or, in a thread, ``Fault`` objects.
        port: 0 takes a free port.
        **options: of ``SimulatedServer``; in a process, a guise by its name or place.

    Attributes:
        base_url: for a client; ends in ``/v1``.
        root_url: the same without ``/v1``.
        model: the served name.
    """

    def __init__(
        self,
        profile: str | Profile = "instant",
        *,
        process: bool = False,
        model: str = "simulated",
        faults: Iterable[str | Fault] = (),
        port: int = 0,
        **options: Any,
    ) -> None:
        self.model = model
        self.port: int = port
        self._options = {"profile": profile, "model": model, "faults": list(faults)} | options
        if process:
            json.dumps(self._options)  # fails here, not in the child
        # Fails here, not in the thread.
        self._profile_name = SimulatedServer(**self._options).profile.name
        self._is_process = process
        self._child: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._stop_thread: Callable[[], object] | None = None

    def __repr__(self) -> str:
        state = "up" if self._child or self._thread else "down"
        return f"<EmbeddedServer {self.root_url} {self._profile_name} {state}>"

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen. Counts, faults and clock begin anew.

        Raises:
            OSError: the port is taken.
            RuntimeError: the server is already up, or the child did not come up.
        """
        if self._child or self._thread:
            raise RuntimeError(f"{self!r} is already running")
        if self._is_process:
            self._start_child()
        else:
            self._start_thread()

    def stop(self) -> None:
        """Go down, with every open connection. Does nothing when already down."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
        if self._thread is not None and self._stop_thread is not None:
            # A loop that has ended by itself needs no stopping.
            with contextlib.suppress(RuntimeError):
                self._stop_thread()
            self._thread.join()
            self._thread = self._stop_thread = None

    def statistics(self) -> dict[str, Any]:
        """The server's counts: ``requests``, ``prompts``, ``list_sizes``, ``log`` and more."""
        answer = json.loads(self._http("GET", "/simulator/statistics"))
        answer["list_sizes"] = {int(size): count for size, count in answer["list_sizes"].items()}
        assert isinstance(answer, dict)
        return answer

    @property
    def requests(self) -> int:
        """Completion requests so far."""
        return int(self.statistics()["requests"])

    @property
    def prompts(self) -> int:
        """Prompts so far."""
        return int(self.statistics()["prompts"])

    def set_faults(self, *faults: str) -> None:
        """Replace the faults; without arguments, end them all.

        Raises:
            ValueError: a text is not a fault; the old faults stay.
        """
        for each in faults:
            Fault.parse(each)
        self._http("POST", "/simulator/faults", json.dumps(faults).encode())

    def _http(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_HTTP_TIMEOUT_S)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()

    # --- a thread ---

    def _start_thread(self) -> None:
        # First, since the call fails without uvicorn, and a listener would be left open.
        runner = _uvicorn(SimulatedServer(**self._options, epoch_s=time.time()))
        listener = listen("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        stopped = asyncio.Event()
        loop = asyncio.new_event_loop()
        self._stop_thread = lambda: loop.call_soon_threadsafe(stopped.set)
        self._thread = threading.Thread(
            target=_run_thread, args=(loop, runner, listener, stopped), name="embedded-server", daemon=True
        )
        self._thread.start()
        # The socket listens already: connections wait in its backlog.

    # --- a process ---

    def _start_child(self) -> None:
        options = json.dumps(self._options | {"port": self.port})
        command = [sys.executable, "-m", "batchclient.simulator", options]
        pipe = subprocess.PIPE
        # A guise is imported from the same places as here.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._child = child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)  # noqa: S603
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError("the embedded server's process ended before it listened; its error is above")
        self.port = int(line)


def _run_thread(
    loop: asyncio.AbstractEventLoop, runner: uvicorn.Server, listener: socket.socket, stopped: asyncio.Event
) -> None:
    async def serve_until_stopped() -> None:
        serving = asyncio.ensure_future(runner.serve(sockets=[listener]))
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        # uvicorn would first wait for the work in hand; a killed server does not.
        serving.cancel()
        await asyncio.wait((serving,))
        for each in getattr(runner, "servers", ()):
            each.close()
        for _ in range(_TURNS_OF_AN_ACCEPT):
            for connection in list(runner.server_state.connections):
                connection.transport.abort()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: loop) as asyncio_runner:
        asyncio_runner.run(serve_until_stopped())
    listener.close()


def run_child(options_json: str) -> None:
    """Live the child's whole life: listen, tell the port, serve until the parent has gone."""
    options = json.loads(options_json)
    listener = listen("127.0.0.1", options.pop("port"))
    runner = _uvicorn(SimulatedServer(**options, epoch_s=time.time()))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    print(listener.getsockname()[1], flush=True)  # noqa: T201  # the parent reads it
    runner.run(sockets=[listener])


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)
