"""An HTTP server in a thread, for what another process, thread or loop asks: a function answers each request.

It knows no script of bytes; ``raw`` does.
"""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@contextmanager
def serving(answer):
    """A server whose every reply is what ``answer(asked)`` returns: (status, body) or (status, body, headers).

    A body that is no bytes goes as JSON. Of the server: ``root`` and ``url`` (with /v1), ``port``, and ``asked``, the requests so far.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet for a reply: in two, the second waits for the client's acknowledgement of the first.
        wbufsize = -1

        def respond(self):
            content = self.rfile.read(int(self.headers["content-length"] or 0))
            server.asked.append(Asked(self.command, self.path, self.headers, content))
            status, body, *headers = answer(server.asked[-1])
            if not isinstance(body, bytes):
                body, headers = json.dumps(body).encode(), headers or [{"content-type": "application/json"}]
            self.send_response(status)
            for name, value in {**dict(*headers), "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = respond

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked, server.port = [], server.server_port
        server.root = f"http://127.0.0.1:{server.port}"
        server.url = f"{server.root}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
