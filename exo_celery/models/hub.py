"""The Hugging Face hub, and whoever speaks its protocol, as a source.

One request lists a model (commit, lengths, digests); files are then asked for by commit, so that a repository that
changes meanwhile cannot mix two revisions. Protocol: https://huggingface.co/docs/hub/api, and `X-Error-Code`.

The hub's own client says how a listing is read. It does not ask: its requests cannot be cancelled, and what it fetches
is neither resumed nor verified.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from exo_celery.errors import DownloadError, DownloadInterruptedError
from exo_celery.models.folders import checked_name, is_wanted
from exo_celery.models.http import Answer, get
from exo_celery.models.manifest import FileEntry, Manifest
from exo_celery.models.sources import Stream, WrongBytesError
from exo_celery.models.stop import Stop

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from huggingface_hub.hf_api import RepoSibling

PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # worth another try; no other status is
LISTING_BYTES: Final = 64 << 20  # the longest listing that is read
LISTING_SECONDS: Final = 300.0  # a listing is asked for again after this: retries do not hammer the hub
FULL, PART, BEYOND_END = 200, 206, 416


class HubSource:
    """A hub at an address. The token goes to that address alone, never along with a redirect to another."""

    def __init__(self, endpoint: str, token: str | None, *, label: str = "", proxied: bool = True) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.label = label or f"hub {self.endpoint}"
        self.proxied = proxied
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._listings: dict[tuple[str, str], tuple[float, Manifest]] = {}

    def offers(self, model: str, revision: str) -> bool:
        """Whether it may be asked for the model: always."""
        return True

    def manifest(self, model: str, revision: str, stop: Stop) -> Manifest:
        """List a model's wanted files with one request, remembered for some minutes."""
        at, listed = self._listings.get((model, revision), (0.0, None))
        if listed is None or time.monotonic() - at > LISTING_SECONDS:
            listed = self.ask(model, revision, stop)
            self._listings[model, revision] = self._listings[model, listed.revision] = (time.monotonic(), listed)
        return listed

    def ask(self, model: str, revision: str, stop: Stop) -> Manifest:
        """List a model's wanted files."""
        from huggingface_hub.constants import DEFAULT_REVISION  # noqa: PLC0415 (as in read_info)

        url = f"{self.endpoint}/api/models/{model}/revision/{quote(revision or DEFAULT_REVISION, safe='')}?blobs=true"
        with get(url, self._headers, stop, proxied=self.proxied) as answer:
            self.judge(answer, model)
            text = answer.body(LISTING_BYTES)
        try:
            info = read_info(json.loads(text))
            if not info.sha or info.siblings is None:
                raise ValueError("it names no commit, or no files")
            names = {checked_name(entry.rfilename): entry for entry in info.siblings}
            files = {name: file_entry(entry) for name, entry in names.items() if is_wanted(name)}
            return Manifest(model=model, source=self.label, revision=info.sha, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DownloadError(f"{self.label} lists {model} in a way that cannot be read: {error!r}") from error

    @contextmanager
    def open(self, manifest: Manifest, name: str, offset: int, stop: Stop) -> Iterator[Stream]:
        """Stream a file from an offset on, by a Range request."""
        url = f"{self.endpoint}/{manifest.model}/resolve/{quote(manifest.revision, safe='')}/{quote(name)}"
        headers = {**self._headers, "Range": f"bytes={offset}-"} if offset else self._headers
        with get(url, headers, stop, proxied=self.proxied) as answer:
            if answer.status == BEYOND_END:
                raise WrongBytesError(f"{name}: {self.label} says it ends before byte {offset}")
            self.judge(answer, manifest.model)
            yield Stream(first_byte(answer), answer.chunks())

    def judge(self, answer: Answer, model: str) -> None:
        """Let a good answer pass.

        Raises:
            DownloadInterruptedError: what was answered may pass; with the wait that was asked for.
            DownloadError: it will not; the message says what cures it.
        """
        if answer.status in (FULL, PART):
            return
        code = answer.headers.get("X-Error-Code", "")
        said = f"{self.label} answers {answer.status} {code} {answer.headers.get('X-Error-Message', '')[:200]}".rstrip()
        if answer.status in PASSING:
            raise DownloadInterruptedError(f"{model}: {said}", retry_after_seconds=asked_wait(answer.headers))
        raise DownloadError(f"{model} cannot be downloaded: {said}. {self.advice(answer.status, code, model)}")

    def advice(self, status: int, code: str, model: str) -> str:
        """Say what cures a refusal."""
        page = f"{self.endpoint}/{model}"
        if code == "GatedRepo":
            return f"Accept its terms at {page} and set HF_TOKEN to a token of that account on this node"
        if status in (401, 403):
            token = "its token (HF_TOKEN) may lack the right" if self._headers else "no HF_TOKEN is set on this node"
            return f"It does not exist, or is private: look at {page}; {token}"
        if code == "RevisionNotFound":
            return f"Ask for a revision that {page} has, or for none"
        return f"Check the id at {page}"


def read_info(listed: dict[str, Any]) -> "ModelInfo":
    """Read what a listing says of files; whatever else it says of the model can do no harm then."""
    from huggingface_hub import ModelInfo  # noqa: PLC0415 (a quarter of all that a worker or a command imports)

    return ModelInfo(**{name: listed[name] for name in ("id", "sha", "siblings")})


def file_entry(listed: "RepoSibling") -> FileEntry:
    """Read one file of a listing; large files carry a sha256, small ones git's blob id."""
    if listed.size is None:
        raise ValueError(f"{listed.rfilename} has no size")
    return FileEntry(size=listed.size, sha256=listed.lfs.sha256 if listed.lfs else "", blob_id=listed.blob_id or "")


def first_byte(answer: Answer) -> int:
    """Return where the body begins: 0 when Range was ignored."""
    if answer.status != PART:
        return 0
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if not found:
        raise DownloadError(f"{answer.url} answers 206 without a Content-Range that tells where its bytes begin")
    return int(found[1])


def asked_wait(headers: Message) -> float | None:
    """Return the seconds that the other side wants us to wait (Retry-After, RateLimit), or None."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isdigit():
        return float(asked)
    try:
        until, at = (parsedate_to_datetime(headers[name]) for name in ("Retry-After", "Date"))
        return max(0.0, (until - at).total_seconds())
    except (TypeError, ValueError):
        limit = re.search(r"\bt=(\d+)", headers.get("RateLimit", ""))
        return float(limit[1]) if limit else None
