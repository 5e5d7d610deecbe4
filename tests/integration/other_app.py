"""A Celery app of somebody else's, with exo_celery as its client: what the documentation of `client` shows, runnable.

Run as `celery -A other_app worker`; it writes what its task saw into a list of its own.
"""

import os

from celery import Celery
from redis import Redis

from exo_celery.client import Client

app = Celery("letters", broker=os.environ["OTHER_BROKER"])
app.conf.task_default_queue = "letters"
exo = Client(os.environ["OTHER_BROKER"], os.environ["OTHER_NAMESPACE"])
shelf = Redis.from_url(os.environ["OTHER_BROKER"], decode_responses=True)


@app.task(name="letters.file_answer", bind=True, shared=False)
def file_answer(self, job_id: str, letter: str) -> None:  # type: ignore[no-untyped-def]
    job = exo.job(job_id)
    shelf.rpush(f"{exo.ns}:shelf", f"{letter} {job.state} {job.text} {self.request.id}")


@app.task(name="letters.post_script", shared=False)
def post_script() -> None:
    shelf.rpush(f"{exo.ns}:shelf", "post scriptum")
