"""Downloads from a hub over real HTTP: the hub is a look-alike that fails in every way users have reported."""

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import pytest
from lookalike.checkpoints import cut, write_model
from lookalike.hub import Hub, drop, ignore_range, page, redirect, silent, stall, status, wrong_bytes

from exo_celery.errors import DownloadCancelledError, DownloadError, DownloadInterruptedError, ModelFolderError
from exo_celery.models import http, receive
from exo_celery.models.catalog import card_from_source
from exo_celery.models.disk import scan
from exo_celery.models.fetch import fetch
from exo_celery.models.hub import HubSource
from exo_celery.models.progress import Progress
from exo_celery.models.stop import Stop

MODEL = "org/tiny"
WEIGHTS = "model.safetensors"


class Lab(NamedTuple):
    root: Path
    hub: Hub
    heard: list[Progress]
    stop: Stop

    @property
    def original(self) -> Path:
        return self.root / "original"

    @property
    def copy(self) -> Path:
        return self.root / "models" / "org--tiny"

    def source(self, token: str | None = None) -> HubSource:
        return HubSource(self.hub.url, token)

    def fetch(self, source: HubSource | None = None, revision: str = "") -> Path:
        source = source or self.source()
        return fetch(MODEL, [self.root / "models"], source, self.heard.append, self.stop, revision=revision)

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.original.iterdir())

    def same(self) -> bool:
        return all((self.copy / path.name).read_bytes() == path.read_bytes() for path in self.original.iterdir())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(receive, "WAITS_SECONDS", (0.01,) * 7)
    write_model(tmp_path / "original", hidden=64)
    with Hub({MODEL: tmp_path / "original"}) as hub:
        yield Lab(tmp_path, hub, [], Stop())


def half_there(lab: Lab, size: int = 20_000) -> None:
    shutil.copytree(lab.original, lab.copy)
    cut(lab.copy / WEIGHTS, size).rename(lab.copy / f"{WEIGHTS}.partial")


def test_a_model_comes_whole_with_one_request_for_the_listing_and_one_per_file(lab: Lab) -> None:
    (lab.original / "README.md").write_text("not wanted")
    (lab.original / "modeling_tiny.py").write_text("never run, so never fetched")
    lab.fetch()
    assert scan(lab.copy).revision == lab.hub.listing(MODEL)[0]
    (lab.original / "README.md").unlink()
    (lab.original / "modeling_tiny.py").unlink()
    assert lab.same()
    assert scan(lab.copy).complete
    assert not list(lab.copy.glob("*.py"))
    assert lab.hub.sent_bytes() == lab.size
    assert len(lab.hub.seen) == 1 + 4
    sums = [p.downloaded_bytes for p in lab.heard]
    assert sums == sorted(sums)


def test_it_goes_on_from_the_byte_it_has(lab: Lab) -> None:
    half_there(lab)
    lab.fetch()
    assert lab.same()
    (asked,) = lab.hub.asked(f"/{WEIGHTS}")
    assert asked.headers["range"] == "bytes=20000-"
    assert lab.hub.sent_bytes() == (lab.original / WEIGHTS).stat().st_size - 20_000


def test_drops_cost_no_byte_twice(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", drop(after=20_000), times=4)
    lab.fetch()
    assert lab.same()
    assert lab.hub.sent_bytes() <= 1.1 * lab.size


def test_an_ignored_range_starts_over_and_appends_nothing(lab: Lab) -> None:
    half_there(lab)
    lab.hub.when(f"/{WEIGHTS}", ignore_range())
    lab.fetch()
    assert lab.same()


def test_a_partial_that_is_too_long_is_dropped_once(lab: Lab) -> None:
    half_there(lab)
    (lab.copy / f"{WEIGHTS}.partial").write_bytes(bytes(10**6))
    lab.fetch()
    assert lab.same()


def test_a_416_drops_the_partial_once(lab: Lab) -> None:
    half_there(lab)
    lab.hub.when(f"/{WEIGHTS}", status(416))
    lab.fetch()
    assert lab.same()
    assert [seen.headers.get("range") for seen in lab.hub.asked(f"/{WEIGHTS}")] == ["bytes=20000-", None]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(lab: Lab, code: int) -> None:
    lab.hub.when(f"/{WEIGHTS}", status(code), times=2)
    lab.fetch()
    assert lab.same()


@pytest.mark.parametrize("headers", [{"Retry_After": "1"}, {"RateLimit": '"api";r=0;t=1'}])
def test_a_wait_that_is_asked_for_is_kept(lab: Lab, headers: dict[str, str]) -> None:
    lab.hub.when(f"/{WEIGHTS}", status(429, **headers))
    began = time.monotonic()
    lab.fetch()
    assert time.monotonic() - began >= 1
    assert lab.same()


def test_a_wait_given_as_a_date_is_kept(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", status(503, Retry_After=formatdate(time.time() + 2, usegmt=True)))
    began = time.monotonic()
    lab.fetch()
    assert time.monotonic() - began >= 0.9, "the header counts whole seconds"


def test_a_hub_that_stays_away_is_given_up_and_bytes_are_kept(lab: Lab) -> None:
    half_there(lab)
    lab.hub.when(f"/{WEIGHTS}", status(503), times=99)
    with pytest.raises(DownloadInterruptedError, match="503"):
        lab.fetch()
    assert len(lab.hub.asked(f"/{WEIGHTS}")) == 8
    assert (lab.copy / f"{WEIGHTS}.partial").stat().st_size == 20_000


@pytest.mark.parametrize(
    ("code", "error", "advice"),
    [
        (401, "RepoNotFound", "no HF_TOKEN is set"),
        (403, "", "no HF_TOKEN is set"),
        (401, "GatedRepo", "Accept its terms at http"),
        (403, "GatedRepo", "Accept its terms at http"),
        (404, "RepoNotFound", "Check the id at http"),
        (404, "EntryNotFound", "Check the id at http"),
    ],
)
@pytest.mark.parametrize("where", ["/api/models/", f"/{WEIGHTS}"])
def test_a_refusal_fails_at_once_and_says_what_to_do(lab: Lab, code: int, error: str, advice: str, where: str) -> None:
    lab.hub.when(where, status(code, error), times=99)
    with pytest.raises(DownloadError, match=advice) as refused:
        lab.fetch()
    assert not isinstance(refused.value, DownloadInterruptedError)
    assert len(lab.hub.asked(where)) == 1, "not asked again"


def test_a_revision_is_pinned_or_refused(lab: Lab) -> None:
    sha = lab.hub.listing(MODEL)[0]
    lab.fetch(revision=sha)
    assert scan(lab.copy).revision == sha
    with pytest.raises(DownloadError, match="Ask for a revision that"):
        lab.fetch(revision="0123abc")


def test_wrong_bytes_are_fetched_again_once(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", wrong_bytes())
    lab.fetch()
    assert lab.same()


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_wrong_bytes_twice_fail_and_leave_nothing_in_place(lab: Lab, name: str) -> None:
    lab.hub.when(f"/{name}", wrong_bytes(), times=99)
    with pytest.raises(DownloadError, match="twice"):
        lab.fetch()
    assert not (lab.copy / name).exists()
    assert not scan(lab.copy).complete


def test_an_html_page_is_no_weights(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", page("<html>please sign in</html>"), times=99)
    with pytest.raises(DownloadInterruptedError, match="ended after"):
        lab.fetch()
    assert not scan(lab.copy).complete


@pytest.mark.parametrize("where", ["/api/models/", f"/{WEIGHTS}"])
def test_a_silent_hub_is_left_at_once_when_cancelled(lab: Lab, where: str) -> None:
    lab.hub.when(where, silent(), times=99)
    threading.Timer(0.3, lab.stop.set).start()
    began = time.monotonic()
    with pytest.raises(DownloadCancelledError):
        lab.fetch()
    assert time.monotonic() - began < 1.5


def test_a_stalling_hub_is_left_at_once_when_cancelled(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", stall(after=30_000), times=99)
    threading.Timer(0.3, lab.stop.set).start()
    with pytest.raises(DownloadCancelledError):
        lab.fetch()
    assert (lab.copy / f"{WEIGHTS}.partial").stat().st_size == 30_000


def test_a_stall_counts_as_a_broken_connection(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SILENCE_SECONDS", 0.3)
    lab.hub.when(f"/{WEIGHTS}", stall(after=30_000), times=2)
    lab.fetch()
    assert lab.same()
    assert lab.hub.sent_bytes() <= 1.1 * lab.size


def test_a_hub_that_is_not_there_is_an_interruption(lab: Lab) -> None:
    lab.hub.__exit__()
    with pytest.raises(DownloadInterruptedError, match="cannot be reached"):
        lab.fetch()


def test_the_token_goes_to_the_hub_and_not_along_with_a_redirect(lab: Lab) -> None:
    half_there(lab)
    lab.hub.token = "hf_secret"
    with Hub({MODEL: lab.original}) as elsewhere:
        lab.hub.when(f"/{WEIGHTS}", redirect(elsewhere.url))
        lab.fetch(lab.source("hf_secret"))
        assert lab.same()
        assert all(seen.headers["authorization"] == "Bearer hf_secret" for seen in lab.hub.seen)
        (onward,) = elsewhere.seen
        assert "authorization" not in onward.headers
        assert onward.headers["range"] == "bytes=20000-", "the range goes along"


def test_a_redirect_that_expires_is_asked_for_again(lab: Lab) -> None:
    with Hub({MODEL: lab.original}) as elsewhere:
        lab.hub.when(f"/{WEIGHTS}", redirect(elsewhere.url), times=2)
        elsewhere.when(f"/{WEIGHTS}", drop(after=10_000))
        lab.fetch()
        assert lab.same()
        assert len(lab.hub.asked(f"/{WEIGHTS}")) == 2, "each try starts at the hub"


def test_redirects_have_an_end(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", redirect(lab.hub.url), times=99)
    with pytest.raises(DownloadError, match="redirects"):
        lab.fetch()


def test_a_redirect_to_something_else_is_not_followed(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", redirect("file://"), times=99)
    with pytest.raises(DownloadError, match="is not a http"):
        lab.fetch()


@pytest.mark.parametrize(
    "name", ["../evil.json", "/etc/evil.json", "a/../../evil.json", "..\\evil.json", "C:evil.json"]
)
def test_a_listing_that_leads_out_writes_nothing(lab: Lab, name: str) -> None:
    sha, files = lab.hub.listing(MODEL)
    listing = {"id": MODEL, "sha": sha, "siblings": [*files.values(), {"rfilename": name, "size": 5, "blobId": "0"}]}
    lab.hub.when("/api/models/", page(json.dumps(listing)))
    with pytest.raises(DownloadError, match="refused"):
        lab.fetch()
    assert not (lab.root / "models").exists()


@pytest.mark.parametrize(
    "text",
    [
        *("<html>", "[]", "{}"),
        '{"id": "org/tiny", "sha": "1", "siblings": [{"rfilename": "x.json"}]}',
        '{"id": "org/tiny", "sha": "1", "siblings": [{"rfilename": 5, "size": 5}]}',
        '{"id": "org/tiny", "sha": "1", "siblings": [{"rfilename": "x.json", "size": 5, "lfs": {"size": 5}}]}',
        '{"id": "org/tiny", "sha": "1", "siblings": [{"rfilename": "x.json", "size": 5, "lfs": 5}]}',
        '{"id": "org/tiny", "sha": null, "siblings": []}',
        '{"id": "org/tiny", "sha": "1", "siblings": null}',
    ],
)
def test_a_listing_that_cannot_be_read_is_refused(lab: Lab, text: str) -> None:
    lab.hub.when("/api/models/", page(text))
    with pytest.raises(DownloadError, match="cannot be read"):
        lab.fetch()


def test_a_readme_that_changes_upstream_moves_no_weights(lab: Lab) -> None:
    lab.fetch()
    (lab.original / "README.md").write_text("new")
    assert scan(lab.copy).complete
    before = lab.hub.sent_bytes()
    lab.fetch()
    assert lab.hub.sent_bytes() == before


def test_a_download_goes_on_at_the_commit_it_began_with_while_the_hub_has_it(lab: Lab) -> None:
    began = lab.hub.listing(MODEL)[0]
    lab.hub.when(f"/{WEIGHTS}", status(404), times=1)
    with pytest.raises(DownloadError):
        lab.fetch()
    lab.fetch()
    asked = lab.hub.asked("/api/models/")
    assert [seen.path.partition("/revision/")[2] for seen in asked] == ["main?blobs=true", f"{began}?blobs=true"]


def test_a_commit_that_the_hub_no_longer_has_gives_way_to_the_new_one(lab: Lab) -> None:
    lab.hub.when(f"/{WEIGHTS}", status(404), times=1)
    with pytest.raises(DownloadError):
        lab.fetch()
    write_model(lab.original, hidden=64, seed=5)
    lab.fetch()
    assert lab.same()
    assert scan(lab.copy).revision == lab.hub.listing(MODEL)[0]


def test_listings_are_remembered_for_retries(lab: Lab) -> None:
    source = lab.source()
    lab.hub.when(f"/{WEIGHTS}", status(503), times=8)
    with pytest.raises(DownloadInterruptedError):
        lab.fetch(source)
    lab.fetch(source)
    assert len(lab.hub.asked("/api/models/")) == 1


def test_files_come_in_parallel(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "original", layers=8, shards=4, hidden=64)
    with Hub({MODEL: folder}, rate=200_000) as hub:
        began = time.monotonic()
        fetch(MODEL, [tmp_path / "models"], HubSource(hub.url, None), lambda _: None, Stop())
        took = time.monotonic() - began
        alone = sum(path.stat().st_size for path in folder.iterdir()) / 200_000
    assert took < 0.7 * alone


def test_digests_of_small_files_are_verified_too(lab: Lab) -> None:
    config = lab.original / "config.json"
    assert config.stat().st_size < 2000
    lab.fetch()
    data = (lab.copy / "config.json").read_bytes()
    listed = lab.hub.listing(MODEL)[1]["config.json"]
    assert listed["blobId"] == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert "lfs" not in listed


def test_a_card_is_made_without_fetching_the_weights(lab: Lab) -> None:
    card = card_from_source(MODEL, lab.source(), lab.stop)
    assert card.storage_bytes == (lab.original / WEIGHTS).stat().st_size
    assert (card.n_layers, card.hidden_size, card.revision) == (4, 64, lab.hub.listing(MODEL)[0])
    assert lab.hub.sent_bytes() == (lab.original / "config.json").stat().st_size


def test_no_card_of_what_mlx_lm_cannot_run(lab: Lab) -> None:
    (lab.original / "config.json").write_text('{"model_type": "sausage"}')
    with pytest.raises(ModelFolderError, match="'sausage' is not one"):
        card_from_source(MODEL, lab.source(), lab.stop)


@pytest.mark.parametrize("lacking", ["tokenizer.json", WEIGHTS])
def test_no_card_of_a_repository_that_cannot_be_loaded(lab: Lab, lacking: str) -> None:
    (lab.original / lacking).unlink()
    with pytest.raises(DownloadError, match="mlx-lm cannot load it"):
        card_from_source(MODEL, lab.source(), lab.stop)
