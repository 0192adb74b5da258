"""Everything that touches torch or TRL: training a policy, and fine-tuning an experience model."""

import os

# before anything here imports torch, transformers or TRL, which read them once
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not keep a busy core from working
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # also keeps TRL from calling home
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
