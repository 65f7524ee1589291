"""A small random model with a byte vocabulary, for runs that need an engine but no real text."""

from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from workbench.model.load import LoadedModel
from workbench.model.random_model import random_decoder
from workbench.model.tokenizer import Tokenizer, TokenizerInfo

_END_OF_TEXT = "<|end|>"
_CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def random_model(num_layers: int, seed: int = 0) -> LoadedModel:
    """A decoder of 4 query and 2 KV heads of 16 in fp32, and a tokenizer with one token a byte."""
    tokenizer = byte_tokenizer()
    decoder = random_decoder(num_layers, vocab_size=tokenizer.vocab_size, seed=seed,
                             max_position=4096, eos_ids=tokenizer.eos_ids)  # fmt: skip
    return LoadedModel(
        decoder,
        tokenizer,
        decoder.arch,
        f"random ({num_layers} layers)",
        Path(),
        decoder.fingerprint,
        (),
    )


def byte_tokenizer() -> Tokenizer:
    """256 byte tokens and an end-of-text token, with a plain chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    raw = RawTokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([_END_OF_TEXT])
    end = len(alphabet)
    special = {"eos_token": _END_OF_TEXT}
    return Tokenizer(raw, TokenizerInfo(None, (end,), False, _CHAT, special))
