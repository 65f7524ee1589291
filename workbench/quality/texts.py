"""Windows of real text: the standard library's help topics, or files of the user's."""

from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RequestError
from workbench.model.help_text import topic_tokens
from workbench.model.tokenizer import Tokenizer
from workbench.quality.plan import QualityPlan

MAX_TEXT_BYTES = 16 * 2**20  # of all files together


@dataclass(frozen=True)
class Window:
    """Tokens of one forced text.

    The first `context` tokens run in the larger chunks. The logits of `score_from` and of every
    later position but the last are scored; position p predicts token p + 1.
    """

    token_ids: tuple[int, ...]
    context: int
    score_from: int

    @property
    def num_scored(self) -> int:
        """Predicted tokens."""
        return len(self.token_ids) - 1 - self.score_from


def text_windows(tokenizer: Tokenizer, plan: QualityPlan) -> list[Window]:
    """Windows of a plan's text, the same for the same plan; fewer where the text ends earlier.

    Raises RequestError when a file cannot be read or the text is shorter than one window.
    """
    if plan.texts:
        tokens = tokenizer.encode(read_texts(plan.texts), add_special=False)
        source = ", ".join(Path(name).name for name in plan.texts)
    else:
        tokens = topic_tokens(tokenizer, plan.seed, plan.num_windows * plan.window_tokens)
        source = "the built-in text"
    size = plan.window_tokens
    count = min(plan.num_windows, len(tokens) // size)
    if not count:
        raise RequestError(
            f"{source} has {len(tokens)} tokens and a window takes {size}: give a longer text, or "
            "a smaller context or scored"
        )
    # spread over the whole text, so that a long file is not judged by its first pages
    step = (len(tokens) - size) // max(1, count - 1)
    starts = [index * step for index in range(count)]
    return [
        Window(tuple(tokens[start : start + size]), plan.context, plan.context - 1)
        for start in starts
    ]


def read_texts(paths: tuple[str, ...]) -> str:
    """The files' text in their order, bytes that are no UTF-8 replaced; RequestError if too big."""
    parts, total = [], 0
    for name in paths:
        try:
            total += Path(name).stat().st_size
            if total > MAX_TEXT_BYTES:
                raise RequestError(
                    f"{name} makes the text larger than {MAX_TEXT_BYTES // 2**20} MiB: give less"
                )
            parts.append(Path(name).read_bytes().decode("utf-8", errors="replace"))
        except OSError as error:
            raise RequestError(
                f"{name} cannot be read ({error.strerror}): name a text file"
            ) from error
    return "\n\n".join(parts)
