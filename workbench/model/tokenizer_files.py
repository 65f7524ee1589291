"""Build a tokenizer from a GGUF's vocabulary and merges, or from a Hugging Face folder."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from workbench.errors import ModelError
from workbench.model.arch import ModelArch
from workbench.model.gguf_loader import GgufSource
from workbench.model.hf_loader import read_json
from workbench.model.tokenizer import Tokenizer, TokenizerInfo

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types that are matched in the text as a whole
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How many digits stay together is the only difference of these families.
_SPLITS = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}",
}


def tokenizer_from_gguf(source: GgufSource) -> Tokenizer:
    """A byte-level BPE tokenizer from GGUF metadata.

    Raises ModelError for other tokenizer models and for pre-tokenizers it does not know.
    """
    model = source.value("tokenizer.ggml.model")
    tokens, merges = source.value("tokenizer.ggml.tokens"), source.value("tokenizer.ggml.merges")
    if model != "gpt2" or not tokens or merges is None:
        raise ModelError(
            f"the tokenizer {model!r} of {source.path.name} is not byte-level BPE: load the "
            "model's Hugging Face folder with its tokenizer.json instead"
        )
    kind = str(source.value("tokenizer.ggml.pre", "default"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    raw = RawTokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=pairs,
            ignore_merges=kind == "llama-bpe",
        )
    )
    raw.pre_tokenizer = _pre_tokenizer(kind)
    raw.decoder = decoders.ByteLevel()
    types = source.value("tokenizer.ggml.token_type", [])
    raw.add_special_tokens(_added(tokens, types, _CONTROL))
    raw.add_tokens(_added(tokens, types, _USER_DEFINED))
    return Tokenizer(raw, _gguf_info(source, tokens))


def read_tokenizer(path: Path) -> RawTokenizer:
    """A tokenizer.json; ModelError in one sentence if it is damaged."""
    try:
        return RawTokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"{path} is not a readable tokenizer ({error}): copy it again") from error


def tokenizer_from_folder(folder: Path, arch: ModelArch) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (tokenizer.json, tokenizer_config.json)."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelError(f"{folder} has no tokenizer.json: copy it from the model's repository")
    raw = read_tokenizer(path)
    config = read_json(folder / "tokenizer_config.json", {})
    special = {
        key: _text(config[key])
        for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if config.get(key) is not None
    }
    return Tokenizer(
        raw,
        TokenizerInfo(
            bos_id=arch.bos_id,
            eos_ids=arch.eos_ids,
            add_bos=_adds_bos(raw, config, arch.bos_id),
            chat_template=_template(folder, config),
            special_tokens=special,
        ),
    )


def _pre_tokenizer(kind: str) -> Any:
    if kind == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if kind in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[kind]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise ModelError(
        f"the pre-tokenizer {kind!r} of this GGUF is not known: load the model's Hugging Face "
        "folder with its tokenizer.json instead"
    )


def _added(tokens: list[str], types: list[int], wanted: int) -> list[AddedToken]:
    special = wanted == _CONTROL
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types, strict=False)
        if kind == wanted
    ]


def _gguf_info(source: GgufSource, tokens: list[str]) -> TokenizerInfo:
    ids = {
        "bos_token": source.value("tokenizer.ggml.bos_token_id"),
        "eos_token": source.value("tokenizer.ggml.eos_token_id"),
        "unk_token": source.value("tokenizer.ggml.unknown_token_id"),
        "pad_token": source.value("tokenizer.ggml.padding_token_id"),
    }
    return TokenizerInfo(
        bos_id=source.arch.bos_id,
        eos_ids=source.arch.eos_ids,
        add_bos=bool(source.value("tokenizer.ggml.add_bos_token", False)),
        chat_template=str(source.value("tokenizer.chat_template", "")),
        special_tokens={key: tokens[index] for key, index in ids.items() if index is not None},
    )


def _adds_bos(raw: RawTokenizer, config: dict[str, Any], bos_id: int | None) -> bool:
    if bos_id is None:
        return False
    if "add_bos_token" in config:
        return bool(config["add_bos_token"])
    return list(raw.encode("a", add_special_tokens=True).ids)[:1] == [bos_id]


def _template(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):
        named = {item.get("name"): item.get("template", "") for item in template}
        template = named.get("default", "")
    return str(template)


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
