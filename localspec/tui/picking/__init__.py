"""What the model picker knows and does without widgets."""
