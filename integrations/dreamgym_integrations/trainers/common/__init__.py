"""Shared by the policy's trainers and the experience model's: checkpoints, adapters, processes, reports."""
