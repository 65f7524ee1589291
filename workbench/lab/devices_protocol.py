"""What a devices job and the dashboard say to each other: one JSON line each, without torch.

A plan goes in as one line on standard input; then lines come out, one of `Line`.
"""

import msgspec

from workbench.errors import SettingError
from workbench.lab.job_lines import DoneLine, ErrorLine
from workbench.spatial.devices.report import DeviceReport

MAX_PLAN_BYTES = 2**16
COUNTERPART = {"tp2": "one", "tp3": "one", "pp2": "one", "ep2": "moe_one"}  # in one process
MODELS = ("random", "default")
MOST_NEW_TOKENS = 256


class DevicesPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which placements decode, and how much.

    `model`: `random`, a tiny one that starts at once, or `default`, the default model. Experts are
    random in either case. SettingError where a name or a number is out of range.
    """

    placements: list[str]
    model: str = "random"
    new_tokens: int = 17

    def __post_init__(self) -> None:
        unknown = [name for name in self.placements if name not in COUNTERPART]
        if unknown or not self.placements:
            raise SettingError(
                f"placements = {self.placements}: choose one or more of {', '.join(COUNTERPART)}"
            )
        if self.model not in MODELS:
            raise SettingError(f"model = {self.model!r}: choose one of {', '.join(MODELS)}")
        if not 2 <= self.new_tokens <= MOST_NEW_TOKENS:
            raise SettingError(f"new_tokens = {self.new_tokens}: give 2 to {MOST_NEW_TOKENS}")

    @property
    def names(self) -> list[str]:
        """What runs: the placements, each after its counterpart in one process."""
        return list(dict.fromkeys(
            name for each in self.placements for name in (COUNTERPART[each], each)))  # fmt: skip


class ProgressLine(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Share done, 0 to 1, and what runs now: starting, decoding or checking a placement."""

    share: float
    kind: str
    name: str


class ResultLine(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """One placement beside one process; rates in tokens of all sequences a second, decoding.

    `num_equal` of `num_tokens` greedy tokens are one process's; `logit_difference`: largest.
    """

    name: str
    model: str
    report: DeviceReport
    tokens_per_s: float
    one_tokens_per_s: float
    num_equal: int
    num_tokens: int
    logit_difference: float


Line = ProgressLine | ResultLine | ErrorLine | DoneLine


def decode_line(data: bytes) -> Line:
    """A job's line; raises msgspec.DecodeError for anything else."""
    return msgspec.json.decode(data, type=Line)


def decode_plan(data: bytes) -> DevicesPlan:
    """A plan; SettingError says in one sentence what is wrong with it."""
    try:
        return msgspec.json.decode(data, type=DevicesPlan)
    except SettingError:
        raise
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingError(f"the plan is not understood: {error}") from error
