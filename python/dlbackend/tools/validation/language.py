"""Networks of transformers, small ones built from configurations: nothing is downloaded."""

import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dlbackend.tools.validation.rule import Example

VOCABULARY = 96
GENERATED = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


def import_transformers() -> types.ModuleType:
    """transformers, silent about options of generate()."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    return module


def _loss(outputs: Any) -> Tensor:
    loss: Tensor = outputs["loss"]
    return loss


def _sizes(quick: bool) -> dict[str, Any]:
    """The options that most configurations call alike."""
    width = 32 if quick else 256
    return {
        "vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 2 * width,
        "num_hidden_layers": 2 if quick else 4, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip


def _tokens() -> Tensor:
    return torch.randint(3, VOCABULARY, (2, 12))


def _causal(name: str, **more: Any) -> Callable[[bool], Example]:
    """A decoder: `name` is the beginning of its classes' names. It learns and continues two rows of tokens."""

    def make(quick: bool) -> Example:
        transformers = import_transformers()

        sizes = {**_sizes(quick), "num_key_value_heads": 2, **more}
        if name == "GPT2":
            sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = getattr(transformers, f"{name}Config")(**sizes)
        kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        tokens = _tokens()
        ones = torch.ones_like(tokens)
        return Example(
            getattr(transformers, name + kind)(config),
            {"input_ids": tokens, "attention_mask": ones},
            _loss,
            {"input_ids": tokens, "attention_mask": ones, "labels": tokens, "use_cache": False},
            GENERATED,
            replay=name.endswith("Moe"),
        )

    return make


def bert(quick: bool) -> Example:
    """Names masked words, of rows of different length."""
    transformers = import_transformers()

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**_sizes(quick), **off))
    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    return Example(model, inputs, _loss, {**inputs, "labels": tokens})


def t5(quick: bool) -> Example:
    """Translates a row of tokens into another."""
    transformers = import_transformers()

    width, layers = (32, 2) if quick else (256, 4)
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=width, d_kv=width // 4, d_ff=2 * width, num_layers=layers, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    tokens = _tokens()
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": tokens}
    training = {"input_ids": tokens, "labels": _tokens(), "use_cache": False}
    model = transformers.T5ForConditionalGeneration(config)
    return Example(model, inputs, _loss, training, GENERATED)


def whisper(quick: bool) -> Example:
    """Writes down a short sound."""
    transformers = import_transformers()

    width, layers = (32, 2) if quick else (256, 4)
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    widths = {"encoder_ffn_dim": 2 * width, "decoder_ffn_dim": 2 * width, "max_source_positions": 30}
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=16, d_model=width, encoder_layers=layers, decoder_layers=layers,
        max_target_positions=32, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None, **heads, **widths,
    )  # fmt: skip
    tokens = _tokens()
    sound = torch.randn(2, 16, 60)
    inputs = {"input_features": sound, "decoder_input_ids": tokens}
    training = {"input_features": sound, "labels": tokens, "use_cache": False}
    model = transformers.WhisperForConditionalGeneration(config)
    return Example(model, inputs, _loss, training, GENERATED)


MAKERS: dict[str, Callable[[bool], Example]] = {
    "gpt2": _causal("GPT2"),
    "llama": _causal("Llama"),
    "qwen2": _causal("Qwen2"),
    "qwen3-moe": _causal("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8),
    "bert": bert,
    "t5": t5,
    "whisper": whisper,
}
