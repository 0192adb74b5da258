"""A server that answers the routes of vLLM which training uses, from a transformers model, on a real socket."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dreamgym_integrations.trainers.policy.model import TransformersPolicy, load_policy


@dataclass
class VllmDouble:
    """Samples as TransformersPolicy does, with the weights that it was last told to load."""

    policy: TransformersPolicy
    url: str = ""
    loads: int = 0
    """Number of times that it was told to load weights."""
    has_dev_mode: bool = True
    is_deaf: bool = False
    """True if it answers a reload and keeps its weights."""
    has_token_ids: bool = True
    refuses: str = ""
    """Why it refuses to complete; empty if it does not."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Requests for completions."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        """Status and answer to one request."""
        if path == "/v1/models":
            return 200, {"data": [{"id": "policy"}]}
        if path == "/v1/completions":
            return (400, {"error": {"message": self.refuses}}) if self.refuses else (200, self._completed(body))
        if not self.has_dev_mode:
            return 404, {"detail": "Not Found"}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            if not self.is_deaf:
                self.policy = load_policy(Path(body["kwargs"]["weights_path"]))[0]
            self.loads += 1
            return 200, {"results": [None]}
        assert path == "/reset_prefix_cache"
        return 200, {"success": True}

    def _completed(self, body: dict[str, Any]) -> object:
        self.asked.append(body)
        self.policy.max_new_tokens, self.policy.temperature = body["max_tokens"], body["temperature"]
        (sampled,) = self.policy.generate([body["prompt"]], seeds_B=[body["seed"]])
        choice: dict[str, Any] = {"logprobs": {"token_logprobs": sampled.logprobs}}
        if self.has_token_ids:
            choice["token_ids"] = sampled.ids
        return {"choices": [choice]}


@contextmanager
def vllm_double(folder: Path) -> Iterator[VllmDouble]:
    """Serve the checkpoint in a folder."""
    double = VllmDouble(load_policy(folder)[0])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            with double.lock:
                status, answer = double.answer(self.path, body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(ConnectionError):  # after one failure the client does not wait for its other answers
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        double.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join()
