"""Stop strings: cut the text before the first one, and hold back what may be the beginning of one. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StopScanner:
    """Text that streams by. `held` is its end that might be the beginning of a stop string."""

    stops: tuple[str, ...]
    held: str = ""

    def feed(self, text: str) -> tuple["StopScanner", str, bool]:
        """Take more text; return the scanner that follows, the text that is certain, and whether a stop was met."""
        seen = self.held + text
        ends = [at for at in (seen.find(stop) for stop in self.stops) if at >= 0]
        if ends:
            return StopScanner(self.stops), seen[: min(ends)], True
        keep = max((overlap(seen, stop) for stop in self.stops), default=0)
        certain = seen[: len(seen) - keep]
        return StopScanner(self.stops, seen[len(certain) :]), certain, False


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
