"""Training that ends as if its process was killed."""

from abag.head.training.stack import TrainingStep


def stop_after(monkeypatch, steps):
    """Make training fail after some steps; nothing is saved on the way out."""
    real, taken = TrainingStep.run, []

    def step(self, seed):
        if len(taken) == steps:
            raise KeyboardInterrupt
        taken.append(seed)
        real(self, seed)

    monkeypatch.setattr(TrainingStep, "run", step)
