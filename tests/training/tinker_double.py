"""A server of the Tinker API that samples and trains a transformers model, on a real socket.

It uses the wire formats of the client `tinker` (JSON and protobuf) and trains all weights, without an adapter.
"""

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dreamgym_integrations.trainers.policy.model import TransformersPolicy, load_policy

Answer = dict[str, Any] | bytes


@dataclass
class TinkerDouble:
    """One model that is trained, copies of it that are sampled, and weights that were saved."""

    policy: TransformersPolicy
    url: str = ""
    steps: int = 0
    """Optimiser steps so far."""
    is_deaf: bool = False
    """True if it goes on sampling from the weights that it began with."""
    sampled: list[dict[str, Any]] = field(default_factory=list)
    """Requests for samples."""
    samplers: dict[str, TransformersPolicy] = field(default_factory=dict)
    saved: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    """Paths of the weights that it was asked to load."""
    advantages: list[list[float]] = field(default_factory=list)
    """The advantages other than 0 of each optimiser step's tokens."""
    answers: dict[str, Answer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.first = copy.deepcopy(self.policy.model)
        self.optimiser = torch.optim.AdamW(self.policy.model.parameters(), weight_decay=0.0)

    def answer(self, path: str, body: dict[str, Any], raw: bytes) -> Answer:
        """Answer one request. Long operations are done at once; the client fetches their results as futures."""
        simple: dict[str, Answer] = {
            "client/config": {},
            "client/dynamic_config": {},
            "create_session": {"session_id": "session"},
            "session_heartbeat": {},
            "telemetry": {"status": "accepted"},
            "healthz": {"status": "ok"},
            "weights_info": {"base_model": "lamp", "is_lora": True, "lora_rank": 32},
            "get_info": {"model_id": "model", "model_data": {"model_name": "lamp"}},
        }
        if path in simple:
            return simple[path]
        if path == "retrieve_future":
            return self.answers[body["request_id"]]
        made: Answer = getattr(self, path)(raw if path == "forward_backward" else body)
        if path == "create_sampling_session":
            return made
        name = str(len(self.answers))
        self.answers[name] = made
        return {"request_id": name, "sample_sequence_ids": [name]}

    def create_model(self, body: dict[str, Any]) -> Answer:
        return {"model_id": "model", "type": "create_model"}

    def asample(self, body: dict[str, Any]) -> Answer:
        from tinker.proto import tinker_public_pb2 as pb

        self.sampled.append(body)
        how, policy = body["sampling_params"], self.samplers[body["sampling_session_id"]]
        assert (how["temperature"], how["top_p"], how["top_k"]) == (1, 1, -1)
        assert how["stop"] == [policy.tokenizer.eos_token_id]
        assert 0 <= how["seed"] < 2**31, "SkyRL refuses others"
        policy.max_new_tokens = how["max_tokens"]
        (prompt,) = body["prompt"]["chunks"]
        policy.forget()  # prompts come in any order: what is cached of one would change the rounding of the next
        (sampled,) = policy.generate([prompt["tokens"]], seeds_B=[how["seed"]])
        ids, logprobs = np.array(sampled.ids, dtype=np.int32), np.array(sampled.logprobs, dtype=np.float32)
        sequence = pb.SampledSequence(tokens=ids.tobytes(), logprobs=logprobs.tobytes())
        return bytes(pb.SampleResponse(sequences=[sequence]).SerializeToString())

    def forward_backward(self, raw: bytes) -> Answer:
        from tinker.proto import tinker_public_pb2 as pb

        asked = pb.ForwardBackwardRequest()
        asked.ParseFromString(raw)
        assert asked.loss_fn == "importance_sampling"
        self.advantages.append([])
        logprobs_N = [self._learned(datum) for datum in asked.data]
        ends = np.cumsum([0, *(4 * len(one) for one in logprobs_N)], dtype=np.int64)
        logprobs = pb.BatchedTensor(
            data=np.concatenate(logprobs_N).tobytes(), offsets=ends.tobytes(), dtype=pb.DTYPE_FLOAT32
        )
        record = pb.ArrayRecord(fields={"logprobs": logprobs}, num_datums=len(logprobs_N))
        answer = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record])
        return bytes(answer.SerializeToString())

    def _learned(self, datum: Any) -> Any:
        """Add the gradient of one row; return its log-probabilities, float32."""
        ids = torch.from_numpy(np.frombuffer(datum.model_input[0].encoded_text.tokens, np.int32).copy()).long()
        given = datum.loss_fn_inputs
        targets = torch.from_numpy(np.frombuffer(given["target_tokens"].dense, np.int64).copy())
        before, advantages = (
            torch.from_numpy(np.frombuffer(given[name].dense, np.float32).copy()) for name in ("logprobs", "advantages")
        )
        self.advantages[-1] += advantages[advantages != 0].tolist()
        logprobs_TV = self.policy.model(input_ids=ids[None]).logits[0].float().log_softmax(-1)
        logprobs = logprobs_TV.gather(-1, targets[:, None])[:, 0]
        (-((logprobs - before).exp() * advantages).sum()).backward()
        return logprobs.detach().numpy()

    def optim_step(self, body: dict[str, Any]) -> Answer:
        how = body["adam_params"]
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), how["grad_clip_norm"])
        self.optimiser.param_groups[0].update(
            lr=how["learning_rate"], betas=(how["beta1"], how["beta2"]), eps=how["eps"]
        )
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.steps += 1
        return {"type": "optim_step"}

    def save_weights(self, body: dict[str, Any]) -> Answer:
        path = f"tinker://model/weights/{body['path']}"
        self.saved[path] = copy.deepcopy((self.policy.model.state_dict(), self.optimiser.state_dict()))
        return {"path": path, "type": "save_weights"}

    def load_weights(self, body: dict[str, Any]) -> Answer:
        self.loaded.append(body["path"])
        weights, moments = copy.deepcopy(self.saved[body["path"]])
        self.policy.model.load_state_dict(weights)
        self.optimiser.load_state_dict(moments)
        return {"path": body["path"], "model_id": "model", "type": "load_weights"}

    def save_weights_for_sampler(self, body: dict[str, Any]) -> Answer:
        if body.get("path"):
            return {"path": f"tinker://model/sampler_weights/{body['path']}", "type": "save_weights_for_sampler"}
        name = f"sampler-{len(self.samplers)}"
        self.samplers[name] = self.policy.copy()
        self.samplers[name].model = self.first if self.is_deaf else copy.deepcopy(self.policy.model)
        return {"path": None, "sampling_session_id": name, "type": "save_weights_for_sampler"}


@contextmanager
def tinker_double(folder: Path) -> Iterator[TinkerDouble]:
    """Serve the checkpoint in a folder."""
    double = TinkerDouble(load_policy(folder)[0])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_json = "json" in self.headers.get("Content-Type", "")
            with double.lock:
                answer = double.answer(
                    self.path.removeprefix("/api/v1/"), json.loads(raw) if is_json and raw else {}, raw
                )
            is_proto = isinstance(answer, bytes)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf" if is_proto else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True  # the client keeps its connections open

    with Server(("127.0.0.1", 0), Handler) as server:
        double.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join()
