"""Media taken away or full, by hand: for the fault buttons, on real files and processes of ours.

    unplugged   disk     every read and write of its descriptor fails
                pool     its process has ended, and is not started again meanwhile
                objects  their folder is hidden behind a file
    full        disk     its free blocks are given back to the file system
                pool     it takes no page more
                objects  their cap is what they hold now

A store at an address that somebody gave is not ours: others may work there. A full one is only
refused our own cap. Each outage ends by `restore`, or before its medium is closed or resized.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from workbench.errors import TierError

if TYPE_CHECKING:
    from workbench.spatial.hierarchy.slow_tier import SlowTier

UNPLUGGED, FULL = "unplugged", "full"
KINDS = (UNPLUGGED, FULL)


@runtime_checkable
class UnpluggedMedium(Protocol):
    """A medium that can be taken away; the engine's thread calls it, behind the tier's back."""

    @property
    def can_unplug(self) -> bool:
        """Whether it is ours to take away."""

    def unplug(self) -> None:
        """From now on nothing can be read or written. OSError if that cannot be done."""

    def plug_in(self) -> None:
        """It is there again, with what it still has. OSError if that cannot be done."""


@runtime_checkable
class FilledMedium(Protocol):
    """A medium that can be made full; the tier's thread calls both."""

    @property
    def can_fill(self) -> bool:
        """Whether its room is ours to take."""

    def fill_up(self) -> None:
        """From now on it has no room for a page more."""

    def make_room(self) -> None:
        """It has its room again."""


@dataclass(frozen=True)
class Outage:
    """What was done to a tier's medium, and how many faults the tier had counted before."""

    kind: str
    num_faults: int


@dataclass(frozen=True)
class OutageState:
    """What a tier `can` suffer, its outage `kind` now or nothing, and what came of that.

    `num_faults`: reads and writes that failed since; `left_alone`: it is not asked for the moment.
    """

    can: tuple[str, ...]
    kind: str = ""
    num_faults: int = 0
    left_alone: bool = False


def state_of(tier: "SlowTier") -> OutageState:
    """A tier's outage, and what it has cost so far."""
    outage = tier.outage
    if outage is None:
        return OutageState(offered(tier))
    since = sum(tier.counters.faults.values()) - outage.num_faults
    return OutageState(offered(tier), outage.kind, since, tier.left_alone)


def offered(tier: "SlowTier") -> tuple[str, ...]:
    """The kinds of outage that a tier can have now."""
    medium = tier.medium
    found: list[str] = []
    if isinstance(medium, UnpluggedMedium) and medium.can_unplug:
        found.append(UNPLUGGED)
    if isinstance(medium, FilledMedium) and medium.can_fill:
        found.append(FULL)
    return tuple(found)


def strike(tier: "SlowTier", kind: str) -> None:
    """Take a tier's medium away, or fill it; the tier finds out by itself.

    TierError where there is no such outage for it, or it has one already.
    """
    if tier.outage is not None:
        raise TierError(f"{tier.name} is {tier.outage.kind} already: plug it in again first")
    if kind not in offered(tier):
        raise TierError(
            f"{tier.name} cannot be {kind}: it is off, knows no such fault, or lies at an address "
            "of yours, where others may work"
        )
    try:
        if kind == UNPLUGGED:
            assert isinstance(tier.medium, UnpluggedMedium)
            tier.medium.unplug()
        else:
            tier.adjust(_fill_up)
    except OSError as error:
        raise TierError(f"{tier.name} cannot be {kind} ({error.strerror})") from None
    tier.outage = Outage(kind, sum(tier.counters.faults.values()))


def restore(tier: "SlowTier") -> None:
    """End a tier's outage, if it has one, and try it again at once. TierError if that fails."""
    outage = tier.outage
    if outage is None:
        return
    try:
        if outage.kind == UNPLUGGED and isinstance(tier.medium, UnpluggedMedium):
            tier.medium.plug_in()
        elif outage.kind == FULL:
            tier.adjust(_make_room)
    except OSError as error:
        raise TierError(f"{tier.name} cannot be plugged in again ({error.strerror})") from None
    tier.outage = None
    tier.health.mended()


def _fill_up(medium: object) -> None:
    if isinstance(medium, FilledMedium):
        medium.fill_up()


def _make_room(medium: object) -> None:
    if isinstance(medium, FilledMedium):
        medium.make_room()
