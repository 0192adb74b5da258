"""One training run in two processes; each writes its final state: `two_processes.py SPEC BASE OUT SETTINGS`.

Each process has the variables that a launcher would set. It is forked from a process that has imported the trainer,
because the import takes longer than the training.
"""

import hashlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from dreamgym_integrations.trainers.policy.model import TransformersPolicy
from dreamgym_integrations.trainers.policy.train import train_policy
from lamp import LampEnvironment

from dreamgym import EnvironmentSpec
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import TokenPlayer


def main(spec: EnvironmentSpec, base: Path, out: Path, settings: Settings) -> None:
    seen: list[TransformersPolicy] = []

    def player(policy: Any, codec: Any) -> TokenPlayer:
        seen.append(policy)
        return TokenPlayer(policy, codec, spec, lambda version, group: LampEnvironment())

    practice = Practice(spec, Curriculum(spec.tasks, share=0, seed=0), None, settings, out / "m.jsonl")
    with start_blocking_portal() as portal:
        train_policy(practice, base, out, settings, portal=portal, player=player)
    digest = hashlib.sha256()
    for name, weight in sorted(seen[0].model.state_dict().items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    ended = {"weights": digest.hexdigest(), "curriculum": practice.curriculum.state()}
    (out / f"process-{os.environ['RANK']}.json").write_text(json.dumps(ended))


def copies(number: int) -> bool:
    """Fork this process `number` times. True in each copy; False in this process, after all have succeeded."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    pids = set()
    for rank in map(str, range(number)):
        pid = os.fork()
        if not pid:
            os.environ.update(address, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(number), LOCAL_WORLD_SIZE=str(number))
            return True
        pids.add(pid)
    while pids:
        ended, status = os.wait()
        pids.remove(ended)
        if status:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)  # it would wait for the other for ever
            sys.exit(f"process {ended} ended with {status}")
    return False


if __name__ == "__main__" and copies(2):
    main(
        EnvironmentSpec.model_validate_json(Path(sys.argv[1]).read_text()),
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        Settings.model_validate_json(sys.argv[4]),
    )
