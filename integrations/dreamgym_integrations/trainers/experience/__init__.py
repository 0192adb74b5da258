"""Fine-tuning an experience model on recorded transitions."""
