"""Write a GGUF as a Hugging Face folder in fp32, for peers that read no GGUF.

.venv-peers/bin/python tests/peers/convert_model.py MODEL.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Convert; the folder appears whole or not at all."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    place = {"gguf_file": source.name, "local_files_only": True}
    network = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.float32, **place)
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **place)
    unfinished = target.with_name(target.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    # `save_pretrained` refuses a model that came from a GGUF, though its weights are plain by now.
    config = network.config
    config.architectures = [type(network).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    weights = {
        name: tensor.float().contiguous()
        for name, tensor in network.state_dict().items()
        if name not in tied
    }
    save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(target)


if __name__ == "__main__":
    main()
