"""Text of one request: output as it streams, and every token as a piece for the text view."""

from workbench.model.tokenizer import Tokenizer
from workbench.request import Request


class Stream:
    """Decodes a request's tokens; a character split over tokens is held back until whole."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream(request.token_ids)
        self.pieces = tokenizer.token_texts(request.token_ids)

    def push(self, token: int) -> str:
        """New text that is complete after this token."""
        self.pieces.append(self._tokenizer.token_text(token))
        return self._decoder.push(token)

    def flush(self) -> str:
        """Whatever was held back, at the end."""
        return self._decoder.flush()
