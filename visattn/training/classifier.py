"""The Lightning module: a classification model and how it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from timm.data import Mixup
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchmetrics import Metric
from typing_extensions import override

from visattn.data.loader import IGNORE
from visattn.models.patch import Patch
from visattn.models.replaced import replacements
from visattn.models.saving.weights import CARD_KEY
from visattn.models.wrapper import NAME
from visattn.models.wrapping import wrappers
from visattn.policy import DecisionModule, policy_term, take_decisions
from visattn.training.metrics import SUMS, SUMS_KEY, Accuracy, Confusion, Mean
from visattn.training.optimisation import apply_recipe, cosine_with_warmup, create_optimizer, new_parts, recipe
from visattn.training.settings import Settings

CHECK_EVERY = 10  # steps between checks of the loss; each check makes a GPU wait


class Classifier(LightningModule):
    """Cross-entropy training of a model, with accuracy measured over all processes."""

    def __init__(self, model: nn.Module, settings: Settings, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.frozen = list(_freeze_backbone(model)) if settings.freeze_backbone else []
        self.mix = None
        if settings.mixup > 0 or settings.cutmix > 0:
            self.mix = Mixup(
                settings.mixup, settings.cutmix, label_smoothing=settings.label_smoothing, num_classes=num_classes
            )
        self.decides = any(isinstance(module, DecisionModule) for module in model.modules())
        if settings.channels_last:
            model.to(memory_format=torch.channels_last)
        self.train_top1 = Accuracy()
        self.train_loss = Mean()  # NaN is handled below
        self.val_top1 = Accuracy()
        self.val_top5 = Accuracy(min(5, num_classes))
        self.val_loss = Mean()
        self.confusion = Confusion(num_classes)
        self._checked: list[Tensor] = []
        self._recipe: list[dict[str, Any]] = []
        self.card: dict[str, Any] = {}
        self.train()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the model card into the checkpoint, and the sums of the epoch, over all processes.

        All of them save together, unless one has failed: then the others would be waited for in vain.
        """
        checkpoint[CARD_KEY] = self.card
        checkpoint[SUMS_KEY] = {
            name: {each: self._over_processes(getattr(getattr(self, name), each)).item() for each in sums}
            for name, sums in SUMS.items()
        }

    def _over_processes(self, value: Tensor) -> Tensor:
        if self.trainer.interrupted:
            return value
        return self.trainer.strategy.reduce(value.clone(), reduce_op="sum")  # which may change its argument

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the sums of an epoch that is not over, which are those of all processes, in the first one."""
        trainer = self._trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        if checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"].get("is_last_batch", True):
            return
        for name, sums in checkpoint.get(SUMS_KEY, {}).items():  # earlier versions kept none
            for each, value in sums.items():
                getattr(getattr(self, name), each).fill_(value)

    def forward(self, image: Tensor) -> Tensor:
        """Compute the logits."""
        return self.model(image)

    def train(self, mode: bool = True) -> Classifier:
        """Set the mode, but keep frozen modules in evaluation mode, so that their batch statistics do not change."""
        super().train(mode)
        for module in self.frozen:
            module.training = False  # itself, but not the blocks in it
        return self

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Make dropout, mixing and sampling a function of (seed, step, process), so that a resumed run repeats them."""
        assert self.trainer is not None
        state = np.random.SeedSequence((self.settings.seed, self.trainer.fit_loop.total_batch_idx, self.global_rank))
        torch_seed, numpy_seed = state.generate_state(2)
        torch.manual_seed(int(torch_seed))
        np.random.seed(int(numpy_seed))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Compute the loss of a batch."""
        image, label = batch["image"], batch["label"]
        if self.mix is not None:
            image, label = self.mix(image, label)
        take_decisions(self.model)  # left over from an abandoned pass
        logits = self(image)
        mixed = label.ndim == 2  # distributions, already smoothed
        loss = F.cross_entropy(logits, label, label_smoothing=0.0 if mixed else self.settings.label_smoothing)
        total = loss + self._policy_loss(logits.detach(), label)
        self._watch(total.detach(), batch_idx)
        self.log("loss", loss.detach())
        self.train_loss.update(loss.detach(), len(image))
        self.train_top1.update(logits.detach(), label.argmax(1) if mixed else label)
        return total

    def _policy_loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Loss of the model's random decisions; the reward is one for a correct answer."""
        if not self.decides:
            return logits.new_zeros(())
        answer = logits.argmax(1)
        reward = label.gather(1, answer[:, None])[:, 0] if label.ndim == 2 else (answer == label).float()
        return policy_term(self.model, reward, mean=self.trainer.strategy.reduce(reward.mean(), reduce_op="mean"))

    def _watch(self, loss: Tensor, batch_idx: int) -> None:
        self._checked.append(loss)
        if batch_idx % CHECK_EVERY == 0:
            self._check()

    def _check(self) -> None:
        if self._checked:
            self._check_finite(torch.stack(self._checked))
        self._checked.clear()

    def _check_finite(self, losses: Tensor) -> None:
        if not losses.isfinite().all():
            step = self.trainer.global_step
            raise FloatingPointError(
                f"the loss is no longer finite, at or shortly before step {step}: lower --lr "
                f"(it is {self.settings.lr:g}), set --clip-grad 1, or use --precision bf16-mixed instead of 16-mixed"
            )

    def running_accuracy(self) -> float:
        """Accuracy of this process in the current epoch so far."""
        counts = self.train_top1
        return float(counts.right / counts.counted.clamp(min=1))

    def on_train_epoch_end(self) -> None:
        """Log the metrics of the epoch."""
        self._check()
        self._report({"train_loss": self.train_loss, "train_top1": self.train_top1})

    @override
    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Count correct and wrong answers; images that only pad a batch do not count."""
        logits, label = self(batch["image"]), batch["label"]
        self.val_loss.update(F.cross_entropy(logits, label, ignore_index=IGNORE), (label != IGNORE).sum())
        for metric in (self.val_top1, self.val_top5, self.confusion):
            metric.update(logits, label)

    def on_validation_epoch_end(self) -> None:
        """Log the validation metrics over all processes."""
        self._check_finite(self.val_loss.compute())
        self._report({"val_loss": self.val_loss, "val_top1": self.val_top1, "val_top5": self.val_top5})

    def _report(self, metrics: dict[str, Metric]) -> None:
        self.log_dict({name: metric.compute() for name, metric in metrics.items()}, sync_dist=True)
        for metric in metrics.values():
            metric.reset()

    def on_train_start(self) -> None:
        """Apply the current settings instead of those saved with the optimiser of a resumed run."""
        apply_recipe(self._recipe, self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler)

    def configure_optimizers(self) -> Any:
        """Create the optimiser and its learning-rate schedule."""
        optimizer = create_optimizer(self.model, self.settings)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = round(self.settings.warmup_epochs * steps / self.settings.epochs)
        schedule = cosine_with_warmup(optimizer, steps=steps, warmup=warmup)
        self._recipe = recipe(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ShardedClassifier(Classifier):
    """Classifier whose weights, gradients and optimiser state are sharded over the processes (FSDP2)."""

    def configure_model(self) -> None:
        """Shard the network."""
        assert self.device_mesh is not None
        # FSDP2 accepts only contiguous weights; feature maps are still channels-last if the images are.
        self.model.to(memory_format=torch.contiguous_format)
        shard(self.model, self.device_mesh["data_parallel"])


def shard(model: nn.Module, mesh: Any) -> None:
    """Shard the weights over the processes: each layer of a sequence separately, inner ones first, then the rest.

    Attached attention is sharded together with the layer it belongs to.
    """
    for name, module in reversed(list(model.named_modules())):
        if isinstance(module, nn.ModuleList | nn.Sequential) and NAME not in name.split("."):
            for child in module.children():
                if sum(1 for _ in child.parameters()) > 3:
                    fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def reshard(model: nn.Module) -> None:
    """Let go of weights that validation gathered: a backward pass ends with sharded ones, whatever it began with."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _freeze_backbone(model: nn.Module) -> Iterator[nn.Module]:
    """Freeze all but the blocks, decision modules and the classifier; yield what must stay in evaluation mode.

    That is every module of the backbone, even one with a block inside, but not those that contain the classifier.
    """
    if isinstance(model, DecisionModule):
        raise ValueError(f"--freeze-backbone: {type(model).__name__} has no backbone to freeze")
    parts = [*new_parts(model), *(module for module in model.modules() if isinstance(module, Patch))]
    trained = {id(module) for part in parts for module in part.modules()}
    blocks = [*(wrapper.visattn for wrapper in wrappers(model).values()), *replacements(model).values()]
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        if id(module) in trained:
            continue
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
        if not any(id(child) in trained - inside for child in module.modules()):
            yield module
