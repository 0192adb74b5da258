"""GRPO in a dream, top to bottom in one file: no trainer, no server, no database.

    python examples/06_grpo_in_one_file.py [UPDATES]

`dreamgym train` does the same through TRL, with a server, a curriculum, checkpoints and probes in the real environment.
Left out here: the KL term (beta = 0), the ratio and its clipping (each batch is used for one step, so the policy that
learns is the one that sampled), groups of equal rewards (their advantages are 0), and a test in the real game.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import mkdtemp

import torch
from dreamgym_integrations.trainers.policy.model import ChatCodec, TransformersPolicy, load_chat_policy
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

import dreamgym
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import read_jsonl
from dreamgym.episode import user_message
from dreamgym.training.advantages import group_advantages
from dreamgym.training.rollout import Rollout, Segment, TokenPlayer, draw_seed

RECORDED = Path(__file__).parent / "coin"
P, G = 8, 8  # tasks per update, rollouts per task
RATE_SFT, RATE_GRPO = 3e-3, 1e-3
SFT_STEPS, UPDATES = 100, 30


def logprobs_of(policy: TransformersPolicy, segments: list[Segment]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token under the current weights, mask of sampled or imitated tokens; both (B, T)."""
    longest = max(len(segment.ids) for segment in segments)
    pad = policy.tokenizer.pad_token_id
    ids_BT = torch.tensor([segment.ids + [pad] * (longest - len(segment.ids)) for segment in segments])
    mask_BT = torch.tensor(
        [[0] * len(segment.prompt_ids) + segment.mask + [0] * (longest - len(segment.ids)) for segment in segments]
    )
    logits_BTV = policy.model(input_ids=ids_BT).logits[:, :-1]
    picked_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    return picked_BT, mask_BT[:, 1:]


def recorded_segment(codec: ChatCodec, episode: dreamgym.Trajectory) -> Segment:
    """A recorded episode as a conversation of the policy: the recorded commands are the policy's answers."""
    first = dreamgym.StepResult(observation=episode.task.initial_state or "")
    segment = Segment(codec.start(user_message(episode.task, first)))
    for number, step in enumerate(episode.transitions):
        said = codec.answer(str(step.action.arguments["command"]))
        segment.completion_ids += said
        segment.mask += [1] * len(said)
        if number + 1 < len(episode.transitions):
            heard = codec.turn(step.result.observation, ended=True)
            segment.completion_ids += heard
            segment.mask += [0] * len(heard)
    return segment


def imitate(policy: TransformersPolicy, segments: list[Segment]) -> None:
    """Supervised fine-tuning: make the recorded commands more likely."""
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE_SFT)
    for step in range(SFT_STEPS):
        batch = [segments[(step * 16 + i) % len(segments)] for i in range(16)]
        logprobs_BT, mask_BT = logprobs_of(policy, batch)
        loss = -(logprobs_BT * mask_BT).sum() / mask_BT.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def learn(policy: TransformersPolicy, optimizer: torch.optim.Optimizer, groups: list[list[Rollout]]) -> float:
    """One policy-gradient step: make the tokens of rollouts that were better than their group more likely."""
    segments, advantages_B = [], []
    for rollouts_G in groups:
        advantages_G = group_advantages([rollout.reward for rollout in rollouts_G])
        for rollout, advantage in zip(rollouts_G, advantages_G, strict=True):
            if advantage:
                segments.append(rollout.segments[0])
                advantages_B.append(advantage)
    if not segments:
        return 0.0
    logprobs_BT, mask_BT = logprobs_of(policy, segments)
    loss = -(torch.tensor(advantages_B)[:, None] * logprobs_BT * mask_BT).sum() / mask_BT.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    policy.forget()  # the sampling cache was computed with the old weights
    return float(loss.detach())


async def main(updates: int) -> None:
    spec = dreamgym.load_spec(str(RECORDED))
    recorded = read_jsonl(RECORDED / "trajectories.jsonl", dreamgym.Trajectory)
    buffer = dreamgym.MemoryBuffer(TrigramEncoder())
    await buffer.add(recorded)
    model = NearestModel()

    folder = Path(mkdtemp())
    create_tiny_policy(recorded, folder, seed=0)
    policy, codec = load_chat_policy(folder)
    torch.manual_seed(0)
    imitate(policy, [recorded_segment(codec, episode) for episode in recorded])

    player = TokenPlayer(policy, codec, spec, lambda version, group: dreamgym.DreamEnvironment(spec, model, buffer))
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE_GRPO)
    tasks = list({episode.task.id: episode.task for episode in recorded}.values())
    for update in range(updates):
        chosen_P = [tasks[(update * P + p) % len(tasks)] for p in range(P)]
        rollouts = await player.play(
            [task for task in chosen_P for _ in range(G)],
            groups=[f"{update}-{p}" for p in range(P) for _ in range(G)],
            seeds=[draw_seed(update, p) for p in range(P) for _ in range(G)],
            version=update,
            sampling_seed=update,
        )
        groups = [rollouts[p * G : (p + 1) * G] for p in range(P)]
        loss = learn(policy, optimizer, groups)
        success = sum(rollout.success for rollout in rollouts) / len(rollouts)
        print(f"update {update + 1:>3}: {success:4.0%} successful in the dream, loss {loss:+.3f}", flush=True)
    policy.model.save_pretrained(folder)
    print(f"{folder}: `dreamgym eval coin --policy {folder} --against real` measures its success in the real game")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else UPDATES))
