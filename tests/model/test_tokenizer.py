"""Tokenizer, streams and chat template of the default model, against transformers' ids."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from model_texts import MESSAGES, TOKENIZER_TEXTS

from workbench.errors import ModelError, RequestError
from workbench.model.gguf_loader import GgufSource
from workbench.model.load import LoadedModel
from workbench.model.tokenizer import Tokenizer, TokenizerInfo
from workbench.model.tokenizer_files import tokenizer_from_gguf


@pytest.fixture(scope="module")
def tokenizer(real_model: Callable[[str], LoadedModel]) -> Tokenizer:
    return real_model("as_stored").tokenizer


def test_ids_equal_transformers(tokenizer: Tokenizer, reference: dict[str, np.ndarray]) -> None:
    wanted = json.loads(str(reference["text_ids"]))
    assert [tokenizer.encode(text) for text in TOKENIZER_TEXTS] == wanted


def test_chat_equals_transformers(tokenizer: Tokenizer, reference: dict[str, np.ndarray]) -> None:
    assert tokenizer.chat(MESSAGES) == reference["chat_ids"].tolist()


def test_built_from_gguf_equals_the_converted_one(
    tokenizer: Tokenizer, gguf_source: GgufSource
) -> None:
    built = tokenizer_from_gguf(gguf_source)
    assert built.fingerprint == tokenizer.fingerprint
    assert built.eos_ids == (2,) and built.vocab_size == 49152


def test_stream_pieces_join_to_the_decoded_text(tokenizer: Tokenizer) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=40))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assume("\ufffd" not in tokenizer.decode(ids))  # the vocabulary has no tokens for some bytes
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in ids] + [stream.flush()]
        assert "".join(pieces) == tokenizer.decode(ids, skip_special=True)

    check()


def test_stream_never_shows_half_a_character(tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream(tokenizer.encode("Hi"))
    pieces = [stream.push(token) for token in tokenizer.encode(" 🙂日本")]
    assert "".join(pieces) + stream.flush() == " 🙂日本"
    assert not any("\ufffd" in piece for piece in pieces)


def test_stream_gives_up_on_bytes_that_are_no_character(tokenizer: Tokenizer) -> None:
    broken = tokenizer.encode("🙂")[:1] * 40
    stream = tokenizer.stream()
    shown = [stream.push(token) for token in broken]
    assert any("\ufffd" in piece for piece in shown)


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    return Tokenizer(tokenizer.raw, TokenizerInfo(chat_template=template))


def test_template_cannot_leave_the_sandbox(tokenizer: Tokenizer) -> None:
    bad = with_template(tokenizer, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ModelError, match="chat template is broken or unsafe .*plain prompt"):
        bad.chat(MESSAGES)


def test_template_cannot_change_what_it_is_given(tokenizer: Tokenizer) -> None:
    bad = with_template(tokenizer, "{{ messages.append(1) }}")
    with pytest.raises(ModelError, match="broken or unsafe"):
        bad.chat(MESSAGES)


def test_template_may_refuse(tokenizer: Tokenizer) -> None:
    strict = with_template(tokenizer, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="refuses these messages: roles must alternate"):
        strict.chat(MESSAGES)


def test_broken_template_no_template_and_bad_message(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="broken or unsafe"):
        with_template(tokenizer, "{% for %}").chat(MESSAGES)
    with pytest.raises(ModelError, match="no chat template: send a plain prompt"):
        with_template(tokenizer, "").chat(MESSAGES)
    with pytest.raises(RequestError, match="needs a role and a content text"):
        tokenizer.chat([{"role": "user"}])


def test_start_token_comes_once(tokenizer: Tokenizer) -> None:
    info = TokenizerInfo(
        bos_id=1,
        add_bos=True,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        special_tokens={"bos_token": "<|im_start|>"},
    )
    with_bos = Tokenizer(tokenizer.raw, info)
    assert with_bos.encode("a")[0] == 1 and with_bos.encode("a", add_special=False)[0] != 1
    assert with_bos.chat([{"role": "user", "content": "a"}]).count(1) == 1
