"""Code shared by the trainers of policy and experience model: checkpoints, adapters, processes, reports."""
