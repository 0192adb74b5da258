"""Run by a launcher in several processes: one training, of which each process writes what it ended with.

accelerate launch … two_processes.py SPEC BASE OUT SETTINGS
"""

import hashlib
import json
import os
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


if __name__ == "__main__":
    main(
        EnvironmentSpec.model_validate_json(Path(sys.argv[1]).read_text()),
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        Settings.model_validate_json(sys.argv[4]),
    )
