import random

import pytest

from exo_celery.runner.prefix import LEAST_TOKENS, PrefixIndex

LONG = tuple(range(100))
MOST_UNUSED = 8


def index(budget: int = 1000, *, exact: bool = False) -> PrefixIndex:
    return PrefixIndex(budget, MOST_UNUSED, exact=exact)


def added(to: PrefixIndex, tokens: tuple[int, ...]) -> int:
    made = to.add(tokens)
    assert made is not None
    return made[0]


def test_the_longest_common_beginning_is_found() -> None:
    kept = index()
    added(kept, LONG[:40] + (7,) * 40)
    best = added(kept, LONG[:60] + (8,) * 40)
    assert kept.find(LONG) == (best, 60)
    assert kept.find(LONG[:50]) is not None
    assert kept.find((9, *LONG)) is None


def test_short_beginnings_are_not_worth_it() -> None:
    kept = index()
    assert kept.add(LONG[: LEAST_TOKENS - 1]) is None
    added(kept, LONG)
    assert kept.find(LONG[: LEAST_TOKENS - 1]) is None
    assert kept.find(LONG[:LEAST_TOKENS]) == (0, LEAST_TOKENS)


def test_a_longer_entry_replaces_its_beginning() -> None:
    kept = index()
    first = added(kept, LONG[:50])
    assert kept.add(LONG) == (1, (first,))
    assert kept.add(LONG[:70]) is None
    assert kept.tokens == 100


def test_the_least_recently_used_goes_first() -> None:
    kept = index(budget=120)
    first = added(kept, (1,) * 40)
    second = added(kept, (2,) * 40)
    third = added(kept, (3,) * 40)
    assert kept.find((1,) * 50) == (first, 40)
    assert kept.add((4,) * 60) == (3, (second, third))
    assert kept.tokens <= 120


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    kept = index(budget=50)
    first = added(kept, (1,) * 40)
    assert kept.add(LONG) is None
    assert kept.find((1,) * 40) == (first, 40)


def once(number: int) -> tuple[int, ...]:
    """Return a prompt that begins as no other does."""
    return (number + 1000, *LONG)


def test_of_entries_that_nobody_came_back_to_the_last_few_stay() -> None:
    kept = index(budget=10**6)
    for number in range(10 * MOST_UNUSED):
        made = kept.add(once(number))
        assert made == (number, (number - MOST_UNUSED,) if number >= MOST_UNUSED else ())
    assert kept.tokens == MOST_UNUSED * len(once(0))


def test_prompts_that_come_once_do_not_push_out_a_conversation() -> None:
    kept = index(budget=10**6)
    turn = LONG
    for number in range(20):
        added(kept, turn)
        assert (kept.find((*turn, 5)) or (0, 0))[1] == len(turn), "the turn before is still there"
        turn = (*turn, 5, number)
        for other in range(2 * MOST_UNUSED):
            added(kept, once(number * 1000 + other))


def test_what_goes_on_a_conversation_is_not_on_trial_again() -> None:
    kept = index(budget=10**6)
    added(kept, LONG[:50])
    kept.find(LONG)
    last = added(kept, LONG)
    for number in range(2 * MOST_UNUSED):
        added(kept, once(number))
    assert kept.find(LONG) == (last, len(LONG))


def test_what_all_prompts_begin_with_keeps_one_entry_only() -> None:
    kept = index(budget=10**6)
    for number in range(10 * MOST_UNUSED):
        prompt = (*LONG, number % 5, number)  # some begin alike for one token more, which is no reason to keep others
        kept.find(prompt)
        added(kept, prompt)
    assert kept.tokens == (1 + MOST_UNUSED) * (len(LONG) + 2)


def test_exact_entries_help_only_as_a_whole() -> None:
    kept = index(exact=True)
    short = added(kept, LONG[:40])
    whole = added(kept, LONG)
    assert kept.find(LONG[:90]) == (short, 40)
    assert kept.find((*LONG, 5)) == (whole, 100)
    assert kept.add(LONG) is None


@pytest.mark.parametrize("exact", [True, False])
def test_any_history_keeps_the_promises(exact: bool) -> None:
    dice = random.Random(3)
    kept, alive = index(budget=400, exact=exact), {}
    for _ in range(400):
        tokens = tuple(dice.choices((0, 1), weights=(9, 1), k=dice.randint(1, 120)))
        found = kept.find(tokens)
        if found is not None:
            entry = alive[found[0]]
            assert entry[: found[1]] == tokens[: found[1]]
            assert not exact or len(entry) == found[1]
        if (made := kept.add(tokens)) is not None:
            for number in made[1]:
                del alive[number]
            alive[made[0]] = tokens
        assert kept.tokens == sum(map(len, alive.values())) <= 400
