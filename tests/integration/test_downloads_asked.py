"""What callers may ask of models and downloads, over REST and the command line: done, or refused with the reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lookalike.checkpoints import write_model
from lookalike.hub import page, status
from lookalike.lab import HERE, MODEL, WEIGHTS, Lab, opened

from exo_celery import cluster as asked
from exo_celery.context import open_context
from exo_celery.errors import DownloadError, ExoError
from exo_celery.plan import NeedDownload
from exo_celery.records.download import DownloadStatus, Wish
from exo_celery.records.model import AddModel
from exo_celery.records.node import Node
from exo_celery.store import downloads as store
from exo_celery.store import jobs, nodes
from exo_celery.tasks.instances import carry_out


@pytest.fixture
def lab(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Lab]:
    with opened(tmp_path, redis_url, namespace) as made:
        yield made


# The catalog


def test_a_model_of_the_hub_is_known_to_everybody_at_once_and_can_be_downloaded(lab: Lab) -> None:
    code, card = lab.post("/api/models", model=MODEL)
    assert (code, card["n_layers"], card["source"]) == (201, 4, f"hub {lab.hub.url}")
    other = open_context(lab.cluster.settings)
    assert asked.model(other, MODEL).storage_bytes == (lab.root / "upstream" / WEIGHTS).stat().st_size
    other.redis.close()
    assert lab.run("download", "n1", MODEL).exit_code == 0
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED)


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (status(403, "GatedRepo"), 404, "Accept its terms"),
        (status(404, "RepoNotFound"), 404, "Check the id"),
        (status(503), 503, "Try again later"),
        (page("<html>"), 404, "cannot be read"),
    ],
)
def test_what_the_hub_says_reaches_the_caller_with_what_to_do(lab: Lab, fault: Any, code: int, said: str) -> None:
    lab.hub.when("/api/models/", fault, times=9)
    answered, body = lab.post("/api/models", model=MODEL)
    assert answered == code
    assert said in body["error"]["message"]


def test_an_unreadable_folder_here_hides_no_card(lab: Lab) -> None:
    (lab.root / "n1").mkdir()
    (lab.root / "n1" / "org--tiny").symlink_to("org--tiny")
    assert lab.post("/api/models", model=MODEL)[0] == 201


def test_no_error_of_a_download_is_a_fault_of_the_server() -> None:
    kinds = [kind for kind in (*subclasses(ExoError),) if "Download" in kind.__name__]
    assert DownloadError in kinds
    assert all(kind.status != 500 for kind in kinds), kinds


def subclasses(kind: type[ExoError]) -> Iterator[type[ExoError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


# Verify


def test_verify_over_rest_tells_which_bytes_are_wrong(lab: Lab) -> None:
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    lab.post("/api/downloads", node="n1", model=MODEL)
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.COMPLETED and not lab.wishes())
    write_model(lab.folder, hidden=64, seed=5)
    code, seen = lab.post(f"{HERE}/verify")
    assert (code, seen["status"]) == (202, "completed")
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.FAILED)
    assert f"{WEIGHTS} in {lab.folder}: other bytes" in lab.hash().error
    assert lab.wishes() == {}


def test_only_what_is_whole_can_be_verified(lab: Lab) -> None:
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    code, body = lab.post(f"{HERE}/verify")
    assert code == 409
    assert "download it first" in body["error"]["message"]
    assert lab.wishes() == {}


def test_each_command_leaves_its_wish(lab: Lab) -> None:
    lab.whole()
    for command in ("download", "verify", "delete"):
        result = lab.run(command, "n1", MODEL)
        assert (result.exit_code, lab.wishes()) == (0, {MODEL: command}), result.output
    lab.run("verify", "n1", MODEL)
    assert lab.run("cancel", "n1", MODEL).exit_code == 0
    assert lab.wishes() == {}


def test_commands_say_what_is_wrong(lab: Lab) -> None:
    unknown = lab.run("download", "n1", "org/other")
    assert unknown.exit_code == 1
    assert "Add one with POST /api/models" in unknown.stderr
    away = lab.run("delete", "n9", MODEL)
    assert "alive: n1" in away.stderr
    assert lab.run("verify", "n1", "../etc").exit_code == 2


# What is needed stays


def test_a_cancel_that_an_instance_would_undo_is_refused_with_its_name(lab: Lab) -> None:
    lab.coming()
    placed = lab.place()
    code, body = lab.post(f"{HERE}/cancel")
    assert code == 409
    assert f"needed by {placed.id}" in body["error"]["message"]
    assert lab.hash().status is DownloadStatus.ONGOING
    asked.delete_instance(lab.cluster, placed.id)
    assert lab.post(f"{HERE}/cancel")[0] == 202
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.PENDING)


def test_what_an_instance_needs_is_not_deleted(lab: Lab) -> None:
    lab.whole()
    lab.place()
    code, body = lab.delete()
    assert code == 409
    assert "needed by i1" in body["error"]["message"]


def test_the_only_copy_stays_while_jobs_wait_for_it(lab: Lab) -> None:
    lab.whole()
    lab.submit()
    code, body = lab.delete()
    assert code == 409
    assert "jobs need it (1 queued or running)" in body["error"]["message"]
    jobs.claim(lab.cluster.redis, lab.cluster.ns, "j1", "i1", ["n1"], "t")
    assert lab.delete()[0] == 409, "a running one counts as well"


@pytest.mark.parametrize("cure", ["job ends", "another node has it"])
def test_then_it_may_go(lab: Lab, cure: str) -> None:
    lab.whole()
    lab.submit()
    if cure == "job ends":
        asked.cancel_job(lab.cluster, "j1")
    else:
        nodes.heartbeat(lab.cluster.redis, lab.cluster.ns, Node(id="n2", boot_id="b2"))
        store.write(lab.cluster.redis, lab.cluster.ns, lab.hash().evolve(node="n2"))
    assert lab.delete()[0] == 202
    lab.node.work_off()
    lab.until(lambda: not lab.folder.exists())


def test_an_instance_that_ends_takes_its_download_with_it(lab: Lab) -> None:
    lab.hub.rate = 20_000
    asked.add_model(lab.cluster, AddModel(model=MODEL))
    placed = lab.place()
    carry_out(lab.cluster, placed, NeedDownload("n1"))
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.ONGOING)
    asked.delete_instance(lab.cluster, placed.id)
    lab.node.work_off()
    lab.until(lambda: lab.hash().status is DownloadStatus.PENDING)


def test_an_instance_that_ends_leaves_what_a_user_wants(lab: Lab) -> None:
    lab.coming()
    placed = lab.place()
    wish = Wish(action="download", by=placed.id)
    store.set_wish(lab.cluster.redis, lab.cluster.ns, "n1", MODEL, wish)
    asked.delete_instance(lab.cluster, placed.id)
    lab.node.work_off()
    assert lab.hash().status is DownloadStatus.ONGOING
    assert store.wishes(lab.cluster.redis, lab.cluster.ns, "n1")[MODEL].by == "user"
