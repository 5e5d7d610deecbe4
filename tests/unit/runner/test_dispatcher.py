"""Who goes into which lane, and when. The lanes are lists here; real ones are led in tests/integration."""

import pytest

from exo_celery.runner.dispatcher import FILL, Dispatcher, choose_lane
from exo_celery.runner.meter import Load
from exo_celery.runner.protocol import Event, Finished
from exo_celery.runner.reply import Reply
from exo_celery.runner.step import Sampling

LANES: list[int] = []  # what was heard of lanes in use


class FakeLane:
    """Takes note of what it is told."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []

    def submit(self, reply: Reply) -> None:
        self.submitted.append(reply.id)

    def cancel(self, reply: Reply) -> None:
        self.cancelled.append(reply.id)


class Silent:
    """A tokenizer that never says anything."""

    last_segment = ""

    def detokenizer(self) -> "Silent":
        return self

    def spell(self, token: int) -> str:
        return ""

    def add_token(self, token: int) -> None:
        raise AssertionError("no token is generated here")

    def finalize(self) -> None:
        self.last_segment = ""


def dispatcher(lanes: int, slots: int, tokens: int = 1000) -> tuple[Dispatcher, list[FakeLane]]:
    made = [FakeLane() for _ in range(lanes)]
    return Dispatcher(made, slots, tokens, FILL, LANES.append), made


def reply(name: str, to: Dispatcher, heard: list[Event], priority: int = 0) -> Reply:
    return Reply(
        name, (1,), Sampling(), max_tokens=1, stops=(), end_tokens=frozenset(), speller=Silent(),
        emit=heard.append, on_finish=to.done, priority=priority,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loads", "lane"),
    [([0, 0], 0), ([FILL - 1, 0], 0), ([FILL, 0], 1), ([FILL, FILL], 0), ([FILL + 1, FILL], 1), ([3, FILL, 0], 0)],
)
def test_lanes_are_filled_one_after_another_then_evenly(loads: list[int], lane: int) -> None:
    assert choose_lane(loads, FILL) == lane


def test_a_burst_is_spread_over_two_lanes() -> None:
    to, lanes = dispatcher(2, 100)
    for number in range(32):
        to.submit(reply(str(number), to, []))
    assert [len(lane.submitted) for lane in lanes] == [16, 16]


def test_those_beyond_the_slots_wait_and_come_in_in_order() -> None:
    to, (lane,) = dispatcher(1, 2)
    heard: list[Event] = []
    replies = [reply(name, to, heard) for name in "abcd"]
    for each in replies:
        to.submit(each)
    assert lane.submitted == ["a", "b"]
    replies[1].finish("length")
    assert lane.submitted == ["a", "b", "c"]


def test_the_line_is_ordered_by_priority_then_by_arrival() -> None:
    to, (lane,) = dispatcher(lanes=1, slots=1)
    replies = [reply(name, to, [], priority) for name, priority in (("a", 9), ("b", 9), ("c", 5), ("d", 0), ("e", 5))]
    for one in replies:
        to.submit(one)
    while len(lane.submitted) < len(replies):
        to.done(next(one for one in replies if one.id == lane.submitted[-1]))
    assert lane.submitted == ["a", "d", "c", "e", "b"]


def test_one_that_waits_is_cancelled_without_a_lane() -> None:
    to, (lane,) = dispatcher(1, 1)
    heard: list[Event] = []
    first, second = reply("a", to, heard), reply("b", to, heard)
    to.submit(first)
    to.submit(second)
    to.cancel(second)
    assert [event.id for event in heard if isinstance(event, Finished)] == ["b"]
    to.cancel(first)
    assert lane.cancelled == ["a"]
    first.finish("cancelled")
    to.cancel(first)
    assert (lane.submitted, lane.cancelled) == (["a"], ["a"])


def test_requests_that_would_not_fit_into_the_cache_wait() -> None:
    to, (lane,) = dispatcher(1, 10, tokens=5)
    heard: list[Event] = []
    replies = [reply(name, to, heard) for name in "abcd"]  # two tokens each
    for each in replies:
        to.submit(each)
    assert lane.submitted == ["a", "b"]
    replies[0].finish("length")
    assert lane.submitted == ["a", "b", "c"]


def test_one_that_never_fits_runs_alone() -> None:
    to, (lane,) = dispatcher(1, 10, tokens=1)
    to.submit(reply("a", to, []))
    to.submit(reply("b", to, []))
    assert lane.submitted == ["a"]


def test_lanes_in_use_are_told_when_they_change() -> None:
    LANES.clear()
    to, _ = dispatcher(lanes=2, slots=3 * FILL)
    heard: list[Event] = []
    replies = [reply(str(number), to, heard) for number in range(FILL + 2)]
    for each in replies:
        to.submit(each)
    assert LANES == [1, 2]
    assert to.load() == Load(running=FILL + 2, waiting=0, lanes=2)
    for each in replies:
        to.done(each)
    assert LANES == [1, 2, 1, 0]
