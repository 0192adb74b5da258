"""Fine-tuning an experience model on recorded transitions."""

from dreamgym_integrations.trainers.common.extra import check_installed

check_installed("fitting a model")
