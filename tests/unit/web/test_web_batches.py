"""Files and batches at the front: what comes in, what is refused, and how it looks."""

import io
from collections.abc import Iterable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from exo_celery import batches
from exo_celery.batches import Wanted
from exo_celery.errors import StorageFullError
from exo_celery.records.batch import Batch, BatchError, BatchStatus, StoredFile
from web import openai_files

FILE = StoredFile(id="file-1", filename="in.jsonl", bytes=6, chunks=1, created_at=5.7, expires_at=9.2)
BATCH = Batch(
    id="batch_" + "a" * 32,
    status=BatchStatus.IN_PROGRESS,
    endpoint="/v1/completions",
    input_file_id="file-1",
    completion_window="24h",
    lines={"org/known": 9},
    completed=3,
    failed=1,
    prompt_tokens=30,
    completion_tokens=12,
    created_at=1700000000.5,
    in_progress_at=1700000001.5,
    expires_at=1700086400.5,
)
WISH: dict[str, Any] = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}


class FakeBatches:
    """One file and one batch."""

    def __init__(self) -> None:
        self.saved: list[tuple[str, bytes, int]] = []
        self.wanted: list[Wanted] = []
        self.cancelled: list[str] = []
        self.full = False
        self.shown = BATCH

    def save_file(self, c: Any, name: str, pieces: Iterable[bytes], owner: str, keep_seconds: int) -> StoredFile:
        if self.full:
            raise StorageFullError("full")
        self.saved.append((name, b"".join(pieces), keep_seconds))
        return FILE

    def file(self, c: Any, file_id: str, owner: str | None = None) -> StoredFile:
        return FILE

    def file_content(self, c: Any, found: StoredFile) -> Iterable[bytes]:
        return iter([b"abc", b"def"])

    def create_batch(self, c: Any, wanted: Wanted, owner: str, sees: str | None, models: Any) -> Batch:
        self.wanted.append(wanted)
        return BATCH

    def batches(self, c: Any, **wanted: Any) -> tuple[list[Batch], bool]:
        return [self.shown], True

    def cancel_batch(self, c: Any, batch_id: str, owner: str | None = None) -> Batch:
        self.cancelled.append(batch_id)
        return BATCH.evolve(status=BatchStatus.CANCELLING)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, fake: Any) -> FakeBatches:
    stand_in = FakeBatches()
    for name in [name for name in vars(FakeBatches) if not name.startswith("_")]:
        monkeypatch.setattr(batches, name, getattr(stand_in, name))
    return stand_in


def upload(client: FlaskClient, content: bytes = b"{}\n", name: str = "in.jsonl", **fields: str) -> TestResponse:
    form: dict[str, Any] = {"purpose": "batch", "file": (io.BytesIO(content), name)} | fields
    return client.post("/v1/files", data=form, content_type="multipart/form-data")


def test_an_upload(client: FlaskClient, kept: FakeBatches) -> None:
    answer = upload(client, b"x" * 300_000, "../some/in.jsonl")
    assert answer.status_code == 200
    assert answer.json == {
        "id": "file-1",
        "object": "file",
        "bytes": 6,
        "created_at": 5,
        "expires_at": 9,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert kept.saved == [("in.jsonl", b"x" * 300_000, batches.KEEP_SECONDS)]
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    assert upload(client, **expiry).status_code == 200
    assert kept.saved[1][2] == 7200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"file": "text"}, "file"),
        ({"surprise": "1"}, "surprise"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "7200"}, None),
    ],
)
def test_a_bad_upload_names_the_field(
    client: FlaskClient, kept: FakeBatches, fields: dict[str, str], param: str | None
) -> None:
    answer = upload(client, **fields)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)
    assert kept.saved == []


def test_a_form_without_a_file_and_what_is_no_form(client: FlaskClient, kept: FakeBatches) -> None:
    empty = client.post("/v1/files", data={"purpose": "batch"}, content_type="multipart/form-data")
    assert (empty.status_code, empty.json["error"]["param"]) == (400, "file")
    assert client.post("/v1/files", json={"purpose": "batch"}).status_code == 415
    broken = client.post("/v1/files", data=b"--x\r\n", content_type="multipart/form-data; boundary=y")
    assert broken.status_code == 400


def test_limits_are_told(client: FlaskClient, kept: FakeBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FILE_BYTES", 1000)
    assert upload(client, b"x" * 1000).status_code == 200
    large = upload(client, b"x" * 1001)
    assert (large.status_code, large.json["error"]["code"]) == (413, "file_too_large")
    monkeypatch.setattr(openai_files, "MAX_UPLOAD_BYTES", 2000)
    assert upload(client, b"x" * 5000).status_code == 413
    kept.full = True
    full = upload(client)
    assert (full.status_code, full.json["error"]["code"]) == (507, "storage_full")


def test_a_content_is_bytes_and_nothing_a_browser_would_run(client: FlaskClient, kept: FakeBatches) -> None:
    answer = client.get("/v1/files/file-1/content")
    assert (answer.data, answer.mimetype, answer.content_length) == (b"abcdef", "application/octet-stream", 6)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_batch_as_clients_read_it(client: FlaskClient, kept: FakeBatches) -> None:
    answer = client.post("/v1/batches", json=WISH | {"metadata": {"a": "b"}, "completion_window": "36h"})
    told = answer.json
    assert answer.status_code == 200
    assert (told["object"], told["status"], told["model"]) == ("batch", "in_progress", "org/known")
    assert told["request_counts"] == {"total": 9, "completed": 3, "failed": 1}
    assert told["usage"]["total_tokens"] == 42
    assert (told["created_at"], told["in_progress_at"], told["completed_at"]) == (1700000000, 1700000001, None)
    assert (told["errors"], told["output_file_id"], told["metadata"]) == (None, None, None)
    wanted = kept.wanted[0]
    assert (wanted.window_seconds, wanted.metadata) == (36 * 3600, {"a": "b"})


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"input_file_id": "../x"}, "input_file_id"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_batch_names_the_field(
    client: FlaskClient, kept: FakeBatches, change: dict[str, Any], param: str
) -> None:
    answer = client.post("/v1/batches", json=WISH | change)
    assert answer.status_code == 400
    assert answer.json["error"]["param"].startswith(param)
    assert kept.wanted == []


def test_a_batch_may_have_a_name_of_its_clients_own(client: FlaskClient, kept: FakeBatches) -> None:
    assert client.post("/v1/batches", json=WISH, headers={"Idempotency-Key": "letters-7"}).status_code == 200
    assert client.post("/v1/batches", json=WISH).status_code == 200
    assert [wanted.idempotency_key for wanted in kept.wanted] == ["letters-7", ""]
    refused = client.post("/v1/batches", json=WISH, headers={"Idempotency-Key": "two words"})
    assert (refused.status_code, len(kept.wanted)) == (400, 2)


def test_lists_and_cancel(client: FlaskClient, kept: FakeBatches) -> None:
    listed = client.get("/v1/batches?limit=1").json
    assert (listed["object"], listed["has_more"], listed["first_id"]) == ("list", True, BATCH.id)
    assert client.get("/v1/batches?limit=101").status_code == 400
    assert client.post(f"/v1/batches/{BATCH.id}/cancel").json["status"] == "cancelling"
    assert kept.cancelled == [BATCH.id]


def test_the_page_tells_how_far_a_batch_is(client: FlaskClient, kept: FakeBatches) -> None:
    page = client.get("/batches").text
    assert "3 answered, 1 failed, of 9" in page
    assert "cancel-batch" in page
    told = [BatchError(code="duplicate_custom_id", message="<b>twice</b>", line=n) for n in (7, 8, 9)]
    kept.shown = BATCH.evolve(status=BatchStatus.FAILED, errors=told, lines={})
    page = client.get("/batches").text
    assert "line 7: &lt;b&gt;twice" in page
    assert "2 more errors" in page
    assert "cancel-batch" not in page


def test_a_cancel_on_the_page(client: FlaskClient, kept: FakeBatches) -> None:
    client.get("/batches")
    cookie = client.get_cookie("exo_csrf")
    assert cookie
    answer = client.post("/actions/cancel-batch", data={"id": BATCH.id}, headers={"X-CSRF-Token": cookie.value})
    assert "cancelling" in answer.text
    assert kept.cancelled == [BATCH.id]
