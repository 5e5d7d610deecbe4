"""The lines of a batch that are in work: taken from the file as jobs, and gathered as results."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from exo_celery import submission
from exo_celery.context import Context
from exo_celery.errors import InvalidRequestError
from exo_celery.openai import lines
from exo_celery.openai.lines import Line
from exo_celery.records.batch import Batch, Cursor, Flight, LineResult, StoredFile
from exo_celery.records.job import TERMINAL, Job, JobRequest, JobState
from exo_celery.store import batches, files, jobs
from exo_celery.store.jobs import Outcome

LINES_PER_SIGN: Final = 500


@dataclass(frozen=True)
class Work:
    """One batch, its file, and what it takes to bring its lines on."""

    cluster: Context
    batch: Batch
    file: StoredFile

    def lines(self, after: Cursor) -> Iterator[Line]:
        """Yield the lines of the file after a cursor."""
        content = files.read(self.cluster.redis, self.cluster.ns, self.file, after.offset)
        return lines.split(content, after.line, after.offset)

    def gather(self, flights: list[Flight], unrun: str) -> list[Flight]:
        """Write the results of lines whose jobs have ended; return the lines still in work.

        A job that does not exist was never submitted: whoever took the line died before. With `unrun` (a code of the
        error file) nothing is run any more: jobs are cancelled, lines without one get that result.
        """
        ids = [self.batch.job_id(one.line) for one in flights]
        found = {job.id: job for job in jobs.many(self.cluster.redis, self.cluster.ns, ids)}
        return [one for one in flights if not self.settle(one, found.get(self.batch.job_id(one.line)), unrun)]

    def settle(self, flight: Flight, job: Job | None, unrun: str) -> bool:
        """Write a line's result if it is to be had; False while its job goes on."""
        if job is not None and unrun and job.state not in TERMINAL:
            job = self.cancel(job)
        if job is None and not unrun:
            before = Cursor(line=flight.line - 1, offset=flight.offset)
            return not self.begin(next(self.lines(before)), flight.custom_id)
        if job is not None and job.state not in TERMINAL:
            return False
        if job is None:
            result = LineResult(good=False, text=lines.unrun_line(self.batch, flight.line, flight.custom_id, unrun))
        else:
            result = lines.result(self.batch, flight.line, flight.custom_id, job, unrun)
        batches.record(self.cluster.redis, self.cluster.ns, self.batch, flight.line, result)
        return True

    def cancel(self, job: Job) -> Job:
        """Cancel a line's job and return how it ended: it may have been done just before."""
        jobs.finish(self.cluster.redis, self.cluster.ns, job.id, None, Outcome(JobState.CANCELLED))
        return jobs.get(self.cluster.redis, self.cluster.ns, job.id)

    def begin(self, line: Line, custom_id: str) -> bool:
        """Submit a line that was taken; one that its endpoint refuses has its result at once. True if it is in work."""
        try:
            request = lines.job_request(line, self.batch.endpoint)
        except InvalidRequestError as error:
            result = lines.refusal(self.batch, line.number, custom_id, error)
            batches.record(self.cluster.redis, self.cluster.ns, self.batch, line.number, result)
            return False
        self.submit(line.number, request)
        return True

    def fill(self, model: str, in_work: int, most: int) -> None:
        """Take lines of a model from the file and submit them, until `most` are in work."""
        redis, ns, batch = self.cluster.redis, self.cluster.ns, self.batch
        stored = batches.cursor(redis, ns, batch.id, model)
        after = batches.cursor_at(stored)
        if in_work >= most or after.offset >= self.file.bytes:
            return
        for line in self.lines(after):
            after = Cursor(line=line.number, offset=line.end)
            if line.number % LINES_PER_SIGN == 0:
                batches.renew(redis, ns, batch.id)
            asked = lines.read(line, batch.endpoint) if line.text else None
            if asked is None or asked.body.model != model:
                continue
            flight = Flight(line=line.number, offset=line.offset, custom_id=asked.custom_id, model=model)
            moved = batches.take(redis, ns, batch.id, stored, after, flight, most)
            if moved is None:
                return
            stored, in_work = moved, in_work + self.begin(line, asked.custom_id)
            if in_work == most:
                return
        batches.skip(redis, ns, batch.id, model, stored, after)

    def submit(self, number: int, request: JobRequest) -> None:
        """Write a line's job and send its message; the same line again is the same job.

        If the line got its result meanwhile (its batch was cancelled, and we were slow), nobody would ever gather it.
        """
        job = Job(
            id=self.batch.job_id(number),
            model=request.model,
            request=request,
            priority=request.priority,
            owner=self.batch.owner,
            seed=secrets.randbits(63) if request.seed is None else request.seed,
        )
        written = jobs.submit(self.cluster.redis, self.cluster.ns, job)
        if not batches.is_flying(self.cluster.redis, self.cluster.ns, self.batch.id, number):
            self.cancel(written)
        elif written.state is JobState.QUEUED:
            submission.publish(self.cluster.app, job.id, job.model, job.priority, written.published_at)
