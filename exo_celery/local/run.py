"""`exo-celery run`: a file of prompts through the cluster, with a window of jobs in flight.

All that it knows is in the two files and in the jobs: stopped and run again it goes on, and asks nothing twice, because
a line's job is named by the line. What the web or its cluster goes through meanwhile, it waits out.
"""

import http.client
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from exo_celery.errors import UnavailableError
from exo_celery.local import prompts
from exo_celery.local.prompts import Line
from exo_celery.local.rest import Rest

LOOK_SECONDS: Final = 0.5
IDS_AT_ONCE: Final = 100  # of one request: servers take about 4,000 characters in a line
PATIENCE_SECONDS: Final = 600.0  # without an answer of the web
PAUSE_SECONDS: Final = 2.0
UNREACHED: Final = "the web at {} cannot be reached (start it, or name it with --url or EXO_WEB_URL)"
ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
AGAIN: Final = frozenset({"failed", "cancelled"})
REFUSED: Final = frozenset({400, 404, 413, 422})  # this line's own fault: the others go on
PASSING: Final = frozenset({429, 500, 502, 503, 504})
T = TypeVar("T")


@dataclass
class Tally:
    """How the run stands."""

    done: int = 0
    failed: int = 0
    tokens: int = 0
    begun_at: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> str:
        """Lines and tokens a second since the start."""
        seconds = max(time.monotonic() - self.begun_at, 0.001)
        return f"{self.done / seconds:.1f} lines/s  {self.tokens / seconds:.0f} tokens/s"


class Run:
    """One run over the lines that have no good result yet."""

    def __init__(self, rest: Rest, window: int, say: Callable[[str], None]) -> None:
        self.rest = rest
        self.window = window
        self.say = say
        self.left: deque[Line] = deque()
        self.flying: dict[str, Line] = {}
        self.tally = Tally()

    def lines(self, lines: list[Line], out: IO[str], step: Callable[[], None]) -> Tally:
        """Submit each line, write each result as it comes, and return how it went.

        Raises:
            UnavailableError: the web refuses us, or did not answer for ten minutes.
        """
        self.left.extend(lines)
        while self.left or self.flying:
            while self.left and len(self.flying) < self.window:
                line = self.left.popleft()
                refusal = self.submit(line)
                if refusal:
                    self.write(out, line, refusal)
                    step()
            for line, job in self.ended():
                self.write(out, line, job)
                step()
            if self.flying:
                time.sleep(LOOK_SECONDS)
        return self.tally

    def submit(self, line: Line) -> dict[str, Any] | None:
        """Submit a line; one whose job failed in an earlier run is tried again. Returns its refusal, if it is one."""
        try:
            job = self.patiently(lambda: self.rest.post("/api/jobs", line.request, Idempotency_Key=line.key))
            if job["state"] in AGAIN:
                job = self.patiently(lambda: self.rest.post(f"/api/jobs/{job['id']}/retry", {}))
        except UnavailableError as error:
            if error.numbers.get("status") not in REFUSED:
                raise
            return {"state": "failed", "error": refusal(error)}
        self.flying[job["id"]] = line
        return None

    def ended(self) -> list[tuple[Line, dict[str, Any]]]:
        """Return the lines in flight that have ended, with their jobs; those whose jobs are gone fly again."""
        found: dict[str, dict[str, Any]] = {}
        for ids in parts(list(self.flying), IDS_AT_ONCE):
            path = f"/api/jobs?ids={','.join(ids)}"
            found |= {job["id"]: job for job in self.patiently(partial(self.rest.get, path))["jobs"]}
        self.left.extend(self.flying.pop(job_id) for job_id in set(self.flying) - set(found))
        return [(self.flying.pop(job_id), job) for job_id, job in found.items() if job["state"] in ENDED]

    def write(self, out: IO[str], line: Line, job: dict[str, Any]) -> None:
        """Write a result, so that a run that is killed has lost none that was counted."""
        out.write(json.dumps(line.result(job), ensure_ascii=False) + "\n")
        out.flush()
        self.tally.done += 1
        self.tally.failed += job["state"] != prompts.SUCCEEDED
        self.tally.tokens += (job.get("usage") or {}).get("completion_tokens", 0)

    def patiently(self, ask: Callable[[], T]) -> T:
        """Ask the web, and again while it or its Redis is away."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except (OSError, http.client.HTTPException) as error:
                trouble: Exception = UnavailableError(f"{UNREACHED.format(self.rest.host)}: {error}")
            except UnavailableError as error:
                if error.numbers["status"] not in PASSING:
                    raise
                trouble = error
            if time.monotonic() > until:
                raise trouble
            self.say(f"waiting: {trouble}")
            time.sleep(PAUSE_SECONDS)


def parts(ids: list[str], size: int) -> Iterator[list[str]]:
    """Yield the ids in parts."""
    for at in range(0, len(ids), size):
        yield ids[at : at + size]


def refusal(error: UnavailableError) -> Any:
    """Return why a line was refused, as the web said it."""
    try:
        return json.loads(error.numbers["said"])["error"]
    except (ValueError, KeyError, TypeError):
        return {"message": error.message, "code": "refused"}


def run(prompts_file: Path, results_file: Path, rest: Rest, window: int, defaults: dict[str, Any]) -> Tally:
    """Bring every line of a file to a result in another, and return how it went; errors as of `Run.lines`.

    Raises:
        InvalidRequestError: a line is no prompt; nothing was submitted then.
    """
    lines = prompts.read(prompts_file, defaults)
    good = prompts.keep_good(results_file, lines)
    left = [line for line in lines if line.key not in good]
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
    with (
        Progress(*columns, TimeRemainingColumn(), console=console) as bars,
        results_file.open("a", encoding="utf-8") as out,
    ):
        shown = bars.add_task("", total=len(lines), completed=len(good), rate="")
        running = Run(rest, window, console.print)
        return running.lines(left, out, lambda: bars.update(shown, advance=1, rate=running.tally.rate))
