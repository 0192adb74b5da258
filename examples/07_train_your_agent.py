"""Train the policy behind an agent, in a dream: the agent stays as it is, its chat model learns.

    python examples/07_train_your_agent.py POLICY_FOLDER OUT

POLICY_FOLDER is a checkpoint whose chat template shows tools, such as a download of Qwen2.5-0.5B-Instruct. The agent
may be anything that takes a task, an MCP URL and a chat URL: here `examples/langgraph_create_agent.py`.
"""

import sys
from pathlib import Path

import dreamgym

HERE = Path(__file__).parent

if __name__ == "__main__":
    policy, out = sys.argv[1:]
    config = dreamgym.TrainConfig(
        policy=policy,
        agent=f"{HERE / 'langgraph_create_agent.py'}:play",
        model="nearest",
        steps=2,
        groups=2,
        group_size=2,
        learning_rate=1e-5,
    )
    print(dreamgym.train(str(HERE / "coin"), config, Path(out)))
