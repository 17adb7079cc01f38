"""Training: settings, the LightningModule, its callbacks, checkpoints."""
