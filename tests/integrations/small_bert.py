"""A small BERT that tells sentences apart, and its training by transformers' Trainer."""

from pathlib import Path
from typing import Any

import packages  # noqa: F401 (makes any torchvision importable, before transformers does)
import torch
import transformers


class Sentences(torch.utils.data.Dataset):
    """Rows of words; the label says whether the first word is in the second half of the vocabulary."""

    def __init__(self, count: int = 64, seed: int = 0) -> None:
        self.ids = torch.randint(5, 100, (count, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": (self.ids[i, 0] > 50).long()}


def bert(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def trained(
    folder: Path | str, dropout: float = 0.0, resume: str | None = None, model: Any = None, **arguments: Any
) -> tuple[Any, list[float]]:
    """A Trainer after some steps, and its losses."""
    options = {
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        **arguments,
    }
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        logging_steps=1,
        report_to=[],
        **options,
    )
    trainer = transformers.Trainer(
        model=model or bert(dropout), args=settings, train_dataset=Sentences(), eval_dataset=Sentences(16, 1)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
