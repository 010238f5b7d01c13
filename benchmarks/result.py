"""What a case of a benchmark measured."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """Seconds of one call of the same work, done in several ways. The last way is the one whose speed is asked for.

    An aim is how many times faster than another way it should be. ``notes`` are further columns; ``bytes_moved`` is
    what an implementation moves that reads and writes everything once (0: not known).
    """

    name: str
    group: str
    seconds: dict[str, float]
    aims: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str | int] = field(default_factory=dict)
    bytes_moved: int = 0

    @property
    def champion(self) -> str:
        return list(self.seconds)[-1]

    @property
    def others(self) -> list[str]:
        return list(self.seconds)[:-1]

    def speedup(self, other: str) -> float:
        """How many times faster than the other way the champion is."""
        return self.seconds[other] / self.seconds[self.champion]

    def reached(self, other: str) -> bool | None:
        """None where there is no aim."""
        return self.speedup(other) >= self.aims[other] if other in self.aims else None
