"""Figures for Prometheus: the format, and what it must not tell."""

import re
from typing import Any

from exo_celery.records.engine import BOUNDS_SECONDS, Durations, EngineFigures
from web import metrics

SAMPLE = re.compile(r'exo_celery_\w+\{(\w+="[^"\n]*",?)*\} [-+.e0-9]+')
PLACED: dict[str, Any] = {"id": "i1", "model": "org/m", "status": "ready"}


def measured() -> str:
    counts = (0, 2, 0, 0, 1) + (0,) * (len(BOUNDS_SECONDS) - 4)
    first = Durations(counts=counts, sum_seconds=0.25)
    figures = EngineFigures(running=2, rows=30, steps=10, requests={"stop": 3}, first_token_seconds=first)
    return "".join(metrics.of_instances([PLACED | {"engine": figures.model_dump(mode="json")}]))


def test_every_line_is_a_comment_or_a_sample() -> None:
    lines = measured().splitlines()
    assert [line for line in lines if not line.startswith(("# HELP ", "# TYPE ")) and not SAMPLE.fullmatch(line)] == []


def test_an_engine_is_told_by_instance_and_model() -> None:
    text, labels = measured(), 'instance="i1",model="org/m"'
    assert f"exo_celery_engine_running{{{labels}}} 2\n" in text
    assert f"exo_celery_engine_rows_total{{{labels}}} 30\n" in text
    assert f'exo_celery_engine_requests_total{{{labels},reason="stop"}} 3\n' in text


def test_durations_are_a_cumulative_histogram() -> None:
    text, labels = measured(), 'instance="i1",model="org/m"'
    buckets = re.findall(r"engine_first_token_seconds_bucket\{.*,le=\"(.*)\"\} (\d+)", text)
    assert [bound for bound, _ in buckets] == [f"{bound:g}" for bound in BOUNDS_SECONDS] + ["+Inf"]
    assert dict(buckets)["0.01"] == "0"
    assert (dict(buckets)["0.025"], dict(buckets)["0.25"], dict(buckets)["+Inf"]) == ("2", "3", "3")
    assert f"exo_celery_engine_first_token_seconds_sum{{{labels}}} 0.25\n" in text
    assert f"exo_celery_engine_first_token_seconds_count{{{labels}}} 3\n" in text


def test_an_engine_that_has_not_run_has_no_samples() -> None:
    assert "exo_celery_engine_running{" not in "".join(metrics.of_instances([PLACED | {"engine": None}]))
