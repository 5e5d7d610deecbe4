"""The command line: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from exo_celery.cli import celery_exo, main
from exo_celery.local.redis_server import free_port


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner(env=environ).invoke(main, arguments)


@pytest.fixture(scope="module")
def case() -> dict[str, object]:
    cases = Path(__file__).parents[1] / "cases" / "placement.jsonl"
    first: dict[str, object] = json.loads(cases.read_text().splitlines()[0])
    return first


def test_place_answers_every_line_in_order(tmp_path: Path, case: dict[str, object]) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{json.dumps(case)}\n{{broken\n{json.dumps(case)}\n")
    result = run("place", "--snapshot", str(file), "--json")
    assert result.exit_code == 0
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["ok"] for answer in told][1] is False
    assert told[0] == told[2]
    assert {"ok", "nodes", "layer_counts", "sharding", "download_score", "error", "why"} <= told[0].keys()
    assert len(result.stdout.splitlines()[0]) == len(json.dumps(told[0], separators=(",", ":"), ensure_ascii=False))


def test_place_in_words(tmp_path: Path, case: dict[str, object]) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{json.dumps(case)}\n{{broken\n")
    result = run("place", "--snapshot", str(file))
    assert result.exit_code == 0
    assert "layers:" in result.stdout or "refused" in result.stdout
    assert "invalid" in result.stdout


def test_usage_errors_are_2() -> None:
    assert run("place").exit_code == 2
    assert run("place", "--snapshot", "/does/not/exist").exit_code == 2
    assert run("up", "--nodes", "0").exit_code == 2
    assert run("fly").exit_code == 2


@pytest.mark.parametrize("name", ["nodes", "models", "downloads", "instances", "jobs"])
def test_no_redis_is_69_and_said(name: str) -> None:
    url = f"redis://:hidden@127.0.0.1:{free_port()}/0"
    result = run(name, EXO_REDIS_URL=url)
    assert result.exit_code == 69
    assert "Redis does not answer" in result.stderr
    assert "hidden" not in result.output
    assert result.stdout == ""


def test_a_wrong_setting_is_78_and_said() -> None:
    result = run("nodes", EXO_NAMESPACE="a b")
    assert result.exit_code == 78
    assert "namespace" in result.stderr


def test_celery_has_the_lists_too() -> None:
    assert {"nodes", "models", "downloads", "instances", "jobs", "events"} <= celery_exo.commands.keys()
