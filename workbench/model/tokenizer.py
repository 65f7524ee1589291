"""Text to token ids and back, and the model's chat template, rendered in a sandbox."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RawTokenizer

from workbench.errors import ModelError, RequestError

_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 8  # a character has at most 4 bytes; more held tokens are a broken stream


@dataclass(frozen=True)
class TokenizerInfo:
    """What a tokenizer needs beside its vocabulary."""

    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    add_bos: bool = False
    chat_template: str = ""
    special_tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token, ...

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**vars(self), "eos_ids": list(self.eos_ids)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "TokenizerInfo":
        """Inverse of `to_json`."""
        return cls(**{**values, "eos_ids": tuple(values["eos_ids"])})


class Tokenizer:
    """Encode, decode and chat for one model.

    `eos_ids` end a generation; `fingerprint` (SHA-256 hex) names vocabulary, rules and template.
    """

    def __init__(self, raw: RawTokenizer, info: TokenizerInfo) -> None:
        self.raw = raw
        self.info = info
        self.eos_ids = info.eos_ids
        self.vocab_size = raw.get_vocab_size()
        text = raw.to_str() + json.dumps(info.to_json(), sort_keys=True)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self._texts: dict[int, str] = {}  # of single tokens, as they were asked for

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text; `add_special` puts the start token first if the model wants one."""
        ids = list(self.raw.encode(text, add_special_tokens=False).ids)
        bos = self.info.bos_id
        if add_special and self.info.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of some tokens; bytes that are no whole character become U+FFFD."""
        return str(self.raw.decode(list(ids), skip_special_tokens=skip_special))

    def token_text(self, token_id: int) -> str:
        """One token as readable text."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([token_id])
        return text

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as readable text."""
        known, text = self._texts, self.token_text
        return [known[token] if token in known else text(token) for token in token_ids]

    def stream(self, prompt_ids: Sequence[int] = ()) -> "DecodeStream":
        """An incremental decoder that continues after `prompt_ids`."""
        return DecodeStream(self, prompt_ids)

    def chat(
        self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation through the model's template.

        messages: dicts with `role` and `content`. Raises RequestError when the template refuses
        them, ModelError when the model has no template or a broken one.
        """
        if not self.info.chat_template:
            raise ModelError("this model has no chat template: send a plain prompt instead")
        for message in messages:
            if not isinstance(message.get("content"), str) or not message.get("role"):
                raise RequestError(f"chat message {message!r} needs a role and a content text")
        text = _render(self.info, messages, add_generation_prompt)
        return self.encode(text, add_special=not text.startswith(self._bos_text()))

    def _bos_text(self) -> str:
        return self.info.special_tokens.get("bos_token") or "\0"


class DecodeStream:
    """Turns a growing list of tokens into text pieces that are never half a character."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A few tokens of context: some decoders treat the first token of a text differently.
        self._context = list(prompt_ids[-4:])
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that this token completes, maybe empty."""
        self._held.append(token_id)
        text = self._held_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """What is still held at the end of the stream."""
        return self._release(self._held_text()) if self._held else ""

    def _held_text(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special=True)
        both = self._tokenizer.decode(self._context + self._held, skip_special=True)
        return both[len(before) :]

    def _release(self, text: str) -> str:
        self._context = (self._context + self._held)[-4:] if self._held else self._context
        self._held = []
        return text


def _render(info: TokenizerInfo, messages: Sequence[dict[str, str]], add_prompt: bool) -> str:
    # Same options as the field's own renderer; the template is the model author's, not ours.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    try:
        template = environment.from_string(info.chat_template)
        return template.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_prompt,
            **info.special_tokens,
        )
    except RequestError:
        raise
    except TemplateError as error:
        raise ModelError(
            f"the model's chat template is broken or unsafe ({error}): send a plain prompt instead"
        ) from error
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"the model's chat template fails ({error}): send a plain prompt instead"
        ) from error


def _refuse(message: str) -> None:
    raise RequestError(f"the model's chat template refuses these messages: {message}")


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
