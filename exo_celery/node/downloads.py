"""Downloads of this node: works off what is wanted, and alone writes what is here.

A wish is a record: it is looked at on boot, on each message and on each tick, so nothing is lost with a process. Two
models are fetched at once; whatever may pass is tried again, later each time, until the wish is fulfilled or withdrawn.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from exo_celery.errors import ConflictError
from exo_celery.models.origins import folder_sources
from exo_celery.models.rate import Rate
from exo_celery.models.remove import remove
from exo_celery.models.sources import Source
from exo_celery.models.survey import ScanCache, find, survey
from exo_celery.node.attempts import End, Ending, Later, attempt, needless, put_off, with_reason
from exo_celery.node.insist import insist
from exo_celery.node.peering import Peering
from exo_celery.node.transfer import Transfer
from exo_celery.records.download import Download, DownloadStatus, Wish
from exo_celery.settings import Settings
from exo_celery.store import downloads as store
from exo_celery.store import events
from exo_celery.store.client import Redis, RedisError, now

log = logging.getLogger(__name__)
AT_ONCE: Final = 2
TELL_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0
VANISHED: Final = End(Ending.INTERRUPTED, "the attempt broke off by a defect of ours, see this node's log")


class Downloads:
    """The downloads of one node. Safe to be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        node_id: str,
        on_change: Callable[[str], None],
        host: str = "127.0.0.1",
    ) -> None:
        self.settings = settings
        self.redis = redis
        self.ns = settings.namespace
        self.node_id = node_id
        self.on_change = on_change
        self.peering = Peering(settings, redis, node_id, host)
        self.sources: list[Source] = [*folder_sources(settings), self.peering.swarm]
        self.rate = Rate(settings.download_limit or 0)
        self.cache = ScanCache()
        # Held while the state changes or is written, so that no older word follows a newer one into Redis.
        self.lock = threading.RLock()
        self.transfers: dict[str, Transfer] = {}
        self.later: dict[str, Later] = {}
        self.standing: dict[str, Download] = {}
        self.stopping = threading.Event()
        self.minder: threading.Thread | None = None

    def on_disk(self) -> Sequence[Download]:
        """Return what the disks hold, except of the models that are being downloaded."""
        with self.lock:
            return survey(self.settings, self.node_id, self.cache, skip=self.transfers)

    def report(self) -> list[Download]:
        """Write the hash of every model on this node, from its disks and running downloads, and return them.

        Raises:
            RedisError: Redis does not answer.
        """
        with self.lock:
            found = self.on_disk()
            running = [transfer.standing() for transfer in self.transfers.values()]
            told = [with_reason(one, self.later) for one in found] + running
            written = store.replace_report(self.redis, self.ns, self.node_id, told)
            self.standing = {one.model: one for one in written}
            return written

    def current(self) -> list[Download]:
        """Return what this node last wrote, without a look at disk or Redis."""
        return [one for _, one in sorted(self.standing.copy().items())]

    def work_off(self) -> None:
        """Start, stop or delete what the wishes say. Asked twice or too often it does nothing more.

        Raises:
            RedisError: Redis does not answer; the wishes are still there.
        """
        with self.lock:
            if self.stopping.is_set():
                return
            wanted = store.wishes(self.redis, self.ns, self.node_id)
            due = {model: wish for model, wish in wanted.items() if wish.action != "delete"}
            self.withdraw(due.keys())
            for model, wish in wanted.items():
                if wish.action == "delete" and model not in self.transfers:
                    self.delete(model, wish)
            for model, wish in sorted(due.items(), key=lambda item: item[1].since):
                if model not in self.transfers and len(self.transfers) < AT_ONCE and self.may_begin(model, wish):
                    self.begin(model, wish)

    def stop(self) -> None:
        """End all downloads at once; their bytes stay and the wishes too, so the next start goes on."""
        self.stopping.set()
        self.peering.close()
        running = list(self.transfers.values())
        for transfer in running:
            transfer.stop.set()
        for thread in [transfer.thread for transfer in running] + [self.minder]:
            if thread and thread is not threading.current_thread():
                thread.join(STOP_SECONDS)

    # The steps of working off: the lock is held

    def withdraw(self, wanted: Collection[str]) -> None:
        """Stop the attempts, and forget the waits, whose wish is gone."""
        for model, transfer in self.transfers.items():
            if model not in wanted:
                transfer.stop.set()
        for model in self.later.keys() - set(wanted) - self.transfers.keys():
            del self.later[model]
            self.say(self.find(model))

    def may_begin(self, model: str, wish: Wish) -> bool:
        """Tell whether an attempt is due: a wish that somebody renewed need not wait out the last one's pause."""
        waits = self.later.get(model)
        return waits is None or waits.since != wish.since or time.monotonic() >= waits.not_before

    def delete(self, model: str, wish: Wish) -> None:
        """Delete a model from this node's writable folders; what stands in the way is told in its hash."""
        reason = ""
        try:
            remove(model, self.settings.writable_dirs)
        except (ConflictError, OSError) as error:
            reason = f"{model} could not be deleted: {error}"
            log.warning(reason)
        self.say(self.find(model))  # also ends the memory of a failed attempt
        self.report()
        if reason:
            self.say(self.find(model).evolve(error=reason))
        store.fulfil(self.redis, self.ns, self.node_id, model, wish)
        self.changed(model)

    def begin(self, model: str, wish: Wish) -> None:
        """Begin an attempt in a thread of its own, unless the disk says that there is nothing to do."""
        found = self.find(model)
        if needless(wish, found):
            self.later.pop(model, None)
            self.say(found)
            store.fulfil(self.redis, self.ns, self.node_id, model, wish)
            self.changed(model)
            return
        transfer = Transfer(found, wish)
        self.say(transfer.standing())
        self.transfers[model] = transfer
        transfer.thread = threading.Thread(
            target=self.run, args=(model, transfer), name=f"download-{model}", daemon=True
        )
        transfer.thread.start()
        self.mind()

    # An attempt and its end, in the attempt's thread

    def run(self, model: str, transfer: Transfer) -> None:
        """Make one attempt, write how it ended, and go on with what is wanted."""
        end = VANISHED
        try:
            end = attempt(model, transfer, self.sources, self.settings.writable_dirs, self.rate)
        finally:
            with self.lock:
                insist(lambda: self.ended(model, transfer, end), self.stopping)
                del self.transfers[model]
        self.changed(model)
        insist(self.work_off, self.stopping)

    def ended(self, model: str, transfer: Transfer, end: End) -> None:
        """Write where an attempt left the model, and what becomes of its wish."""
        found = self.find(model)
        whole = found.status is DownloadStatus.COMPLETED
        before = self.later.pop(model, None)
        if end.how is Ending.COMPLETED and not whole:
            end = End(Ending.FAILED, f"all listed files are here, but they are not a whole model: {found.error}")
        if end.how is Ending.INTERRUPTED:
            self.later[model] = put_off(before, transfer, end, time.monotonic())
            self.say(with_reason(found, self.later))
            self.mind()
        elif end.how is Ending.FAILED and not whole:
            self.say(found.evolve(status=DownloadStatus.FAILED, error=end.reason, source=transfer.source or "none"))
        else:
            self.say(found.evolve(error=end.reason if end.how is Ending.FAILED else found.error))
        text = f"{transfer.wish.action} of {model} on {self.node_id} is {end.how}. {end.reason}".removesuffix(". ")
        events.add(self.redis, self.ns, "download", text, node=self.node_id, model=model)
        if end.how in (Ending.COMPLETED, Ending.FAILED):  # the wish of a cancelled one was withdrawn, or waits for us
            store.fulfil(self.redis, self.ns, self.node_id, model, transfer.wish)

    def changed(self, model: str) -> None:
        """Tell whoever waits for the model on this node; the next tick would tell as well."""
        try:
            self.on_change(model)
        except RedisError as error:
            log.warning("nobody could be told that %s changed here: %s", model, error)

    # Writing

    def find(self, model: str) -> Download:
        """Return what the disks hold of a model now."""
        return find(self.settings, self.node_id, model, self.cache)

    def say(self, download: Download) -> None:
        """Write one download. Of a model that is gone the length that was known stays."""
        with self.lock:
            known = self.standing.get(download.model, download).total_bytes
            written = download.evolve(total_bytes=download.total_bytes or known, updated_at=now(self.redis))
            store.write(self.redis, self.ns, written)
            self.standing[download.model] = written

    def mind(self) -> None:
        """Have somebody tell of progress and keep the waits, as long as there is either."""
        if self.minder is None or not self.minder.is_alive():
            self.minder = threading.Thread(target=self.keep_minding, name="downloads-minder", daemon=True)
            self.minder.start()

    def keep_minding(self) -> None:
        """Once a second write how far each download is, and begin those whose wait is over."""
        while not self.stopping.wait(TELL_SECONDS):
            with self.lock:
                if not self.transfers and not self.later:
                    self.minder = None
                    return
                try:
                    self.tell()
                    self.work_off()
                except RedisError as error:
                    log.warning("Redis does not answer, progress is not told: %s", error)
                except Exception:  # the outermost loop: one error must not end the telling for good
                    log.exception("progress is not told: going on")

    def tell(self) -> None:
        """Write the progress of each running download, at most once a second."""
        for model, transfer in self.transfers.items():
            transfer.sample(time.monotonic())
            seen, said = transfer.standing(), self.standing.get(model)
            if said is None or seen.evolve(updated_at=said.updated_at) != said:
                written = seen.evolve(updated_at=now(self.redis))
                store.progress(self.redis, self.ns, written)
                self.standing[model] = written
