"""Llama-family decoders in plain torch: fetch, load, tokenize, run one step."""
