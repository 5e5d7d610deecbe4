import random

import pytest

from exo_celery.runner.stops import StopScanner, overlap


def feed_all(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool, str]:
    scanner, said = StopScanner(stops), ""
    for piece in pieces:
        scanner, certain, stopped = scanner.feed(piece)
        said += certain
        if stopped:
            return said, True, ""
    return said, False, scanner.held


def test_without_stops_everything_is_certain() -> None:
    assert feed_all((), ["ab", "c"]) == ("abc", False, "")


def test_a_stop_across_pieces_is_met_and_cut() -> None:
    assert feed_all(("END",), ["one E", "N", "D two"]) == ("one ", True, "")


def test_a_false_beginning_is_held_and_then_said() -> None:
    scanner, certain, _ = StopScanner(("END",)).feed("one EN")
    assert (certain, scanner.held) == ("one ", "EN")
    scanner, certain, stopped = scanner.feed("E")
    assert (certain, scanner.held, stopped) == ("EN", "E", False)


def test_the_first_of_several_stops_cuts() -> None:
    assert feed_all(("b", "ab"), ["xab"]) == ("x", True, "")


@pytest.mark.parametrize(("text", "stop", "n"), [("aab", "aba", 2), ("", "x", 0), ("xx", "xxx", 2), ("abc", "abc", 0)])
def test_overlap(text: str, stop: str, n: int) -> None:
    assert overlap(text, stop) == n


def test_any_cutting_of_the_text_gives_the_same() -> None:
    dice = random.Random(5)
    for _ in range(500):
        text = "".join(dice.choices("ab", k=12))
        stops = tuple("".join(dice.choices("ab", k=dice.randint(1, 4))) for _ in range(2))
        cuts = sorted(dice.sample(range(13), 4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
        said, stopped, held = feed_all(stops, pieces)
        first = min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=None)
        if stopped:
            # A piece may complete a longer stop that began earlier; what was said is cut before one of them.
            assert any(text[len(said) :].startswith(stop) for stop in stops)
        else:
            assert first is None
            assert said + held == text
