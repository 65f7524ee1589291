from pathlib import Path

import pytest

from workbench.model.load import display_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B-IQ4_XS.gguf", "Llama-3.2-1B"),
        ("Llama-3.2-1B.gguf", "Llama-3.2-1B"),
        ("folder/Qwen3-0.6B", "Qwen3-0.6B"),
        ("tiny.bf16.gguf", "tiny"),
    ],
)
def test_a_model_is_known_by_its_file(path: str, name: str) -> None:
    assert display_name(Path(path)) == name
