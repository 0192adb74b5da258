"""Train the policy behind an agent in a dream: the agent stays as it is, its chat model learns.

    python examples/07_train_your_agent.py OUT [POLICY_FOLDER]

Without POLICY_FOLDER a tiny policy is made from the recordings. It is enough for an environment with one tool that
takes one text. Other environments need a checkpoint whose chat template shows tools, such as a download of
Qwen2.5-0.5B-Instruct. The agent may be anything that takes a task, an MCP URL and a chat URL: here it is
`examples/langgraph_create_agent.py`.
"""

import sys
from pathlib import Path

import dreamgym

HERE = Path(__file__).parent

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python 07_train_your_agent.py OUT [POLICY_FOLDER]")
    out, policy = Path(sys.argv[1]), (sys.argv[2:] or ["tiny"])[0]
    config = dreamgym.TrainConfig(
        policy=policy,
        agent=f"{HERE / 'langgraph_create_agent.py'}:play",
        model="nearest",
        steps=2,
        groups=2,
        group_size=2,
        learning_rate=1e-5,
    )
    print(dreamgym.train(str(HERE / "coin"), config, out))
