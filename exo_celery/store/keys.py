"""Every Redis key and every time to live: one page to know the whole store. `ns` is settings.namespace."""

from typing import Final

# Seconds.
ALIVE_TTL: Final = 20  # a node lives this long after its last heartbeat
HEARTBEAT: Final = 5
LEASE: Final = 15  # a running job's lease; renewed at a third of it
GRACE: Final = 20  # after an outage of Redis nothing is declared lost for one node life
TAIL_SLACK: Final = 10  # a queued job's message is lost when the next to be popped is this much younger
ATTEMPTS: Final = 5  # runs of one job before it fails for good
FETCHING_TTL: Final = 15  # a node that fetches a file for all renews its claim with the bytes that arrive
TOKENS_TTL: Final = 3600  # token streams after a job's end
THEN_LEASE: Final = 15  # whoever takes a due continuation or webhook has this long; then it is due again
WEBHOOK_LEASE: Final = 60
SESSION_TTL: Final = 12 * 3600
UPLOAD_TTL: Final = 3600  # an upload that stopped is dropped after that
BATCH_TTL: Final = 30 * 86400
BATCH_HOLD: Final = 15  # renewed while its holder reads or writes files
LINE_JOB_TTL: Final = 600  # jobs of lines, once the batch has their results
INVITATION_TTL: Final = 15 * 60
EVENTS_LENGTH: Final = 2000


def nodes(ns: str) -> str:
    """Set: node ids that have registered."""
    return f"{ns}:nodes"


def node(ns: str, node_id: str) -> str:
    """Hash: a node's record."""
    return f"{ns}:node:{node_id}"


def alive(ns: str, node_id: str) -> str:
    """String with a TTL: the boot id of a live node."""
    return f"{ns}:alive:{node_id}"


def download(ns: str, node_id: str, model: str) -> str:
    """Hash: one model on one node."""
    return f"{ns}:download:{node_id}:{model}"


def downloads(ns: str, node_id: str) -> str:
    """Set: models that have a download hash on that node."""
    return f"{ns}:downloads:{node_id}"


def wanted(ns: str, node_id: str) -> str:
    """Hash: model → what is wanted of it on that node."""
    return f"{ns}:wanted:{node_id}"


def fetching(ns: str, model: str, file: str) -> str:
    """String with a TTL: the node that fetches this file from the hub, for all."""
    return f"{ns}:fetching:{model}:{file}"


def links(ns: str, node_id: str) -> str:
    """Hash: peer → how this node reaches it."""
    return f"{ns}:links:{node_id}"


def models(ns: str) -> str:
    """Set: models that have a card."""
    return f"{ns}:models"


def model(ns: str, model_id: str) -> str:
    """Hash: a model card."""
    return f"{ns}:model:{model_id}"


def instances(ns: str) -> str:
    """Set: instances that are not gone."""
    return f"{ns}:instances"


def instance(ns: str, instance_id: str) -> str:
    """Hash: an instance, its ranks' states in fields `rank:<n>`."""
    return f"{ns}:instance:{instance_id}"


def placements(ns: str) -> str:
    """Counter: rises with each decision that promises memory; a decision made on an older count is void."""
    return f"{ns}:placements"


def job(ns: str, job_id: str) -> str:
    """Hash: a job."""
    return f"{ns}:job:{job_id}"


def jobs(ns: str, state: str) -> str:
    """Sorted set by time: jobs in a state (running: by the end of their lease)."""
    return f"{ns}:jobs:{state}"


def queued(ns: str, model_id: str, priority: int) -> str:
    """Sorted set by published time: queued jobs of one model and priority."""
    return f"{ns}:queued:{priority}:{model_id}"


def owned_jobs(ns: str, owner: str) -> str:
    """Sorted set by time of creation: the jobs of one API key."""
    return f"{ns}:jobs:owner:{owner}"


def deadlines(ns: str) -> str:
    """Sorted set by deadline: jobs that must be done by then."""
    return f"{ns}:deadlines"


def expiring(ns: str) -> str:
    """Sorted set by the time at which an ended job's record expires: `<job id> <owner>`."""
    return f"{ns}:expiring"


def outbox(ns: str, what: str) -> str:
    """Sorted set by due time: ended jobs whose continuation (`then`) or `webhook` is still to be sent."""
    return f"{ns}:outbox:{what}"


def access_keys(ns: str) -> str:
    """Hash: SHA-256 of an API key → its id; revoked ones included."""
    return f"{ns}:keys"


def access_key(ns: str, key_id: str) -> str:
    """Hash: what an API key may do."""
    return f"{ns}:key:{key_id}"


def rate(ns: str, key_id: str, window: str) -> str:
    """Counter with a TTL: requests of an API key in one minute."""
    return f"{ns}:rate:{key_id}:{window}"


def session(ns: str, digest: str) -> str:
    """String with a TTL: the SHA-256 of the API key that a browser logged in with."""
    return f"{ns}:session:{digest}"


def files(ns: str) -> str:
    """Sorted set by time of creation: files that are whole."""
    return f"{ns}:files"


def files_expiring(ns: str) -> str:
    """Sorted set by the time at which a file is dropped, unfinished uploads included."""
    return f"{ns}:files:expiring"


def files_bytes(ns: str) -> str:
    """Counter: what all files take, compressed."""
    return f"{ns}:files:bytes"


def file(ns: str, file_id: str) -> str:
    """Hash: a file's record."""
    return f"{ns}:file:{file_id}"


def file_chunks(ns: str, file_id: str) -> str:
    """Hash: number → compressed chunk of a file's content."""
    return f"{ns}:file:{file_id}:chunks"


def batches(ns: str) -> str:
    """Sorted set by time of creation: batches."""
    return f"{ns}:batches"


def batches_active(ns: str) -> str:
    """Sorted set by time of creation: batches that have not ended."""
    return f"{ns}:batches:active"


def batch(ns: str, batch_id: str) -> str:
    """Hash: a batch, the cursor of each model in fields `cursor:<model>`."""
    return f"{ns}:batch:{batch_id}"


def batch_flights(ns: str, batch_id: str) -> str:
    """Hash: line number → the line of a batch that is being worked on."""
    return f"{ns}:batch:{batch_id}:flights"


def batch_results(ns: str, batch_id: str) -> str:
    """Hash: line number → what became of the line, compressed; dropped soon after the batch's end."""
    return f"{ns}:batch:{batch_id}:results"


def batch_hold(ns: str, batch_id: str) -> str:
    """String with a TTL: who moves the batch on now."""
    return f"{ns}:batch:{batch_id}:hold"


def batch_again(ns: str, batch_id: str) -> str:
    """String with a TTL: somebody wanted to move the batch on while it was held."""
    return f"{ns}:batch:{batch_id}:again"


def tokens(ns: str, job_id: str) -> str:
    """Stream: a job's deltas, ids `<attempt>-<n>`."""
    return f"{ns}:tokens:{job_id}"


def tick(ns: str, name: str) -> str:
    """String with a TTL a little below the period: who ran the last tick."""
    return f"{ns}:tick:{name}"


def invitation(ns: str, name: str) -> str:
    """String with a TTL: a sealed cluster secret that waits for a newcomer."""
    return f"{ns}:invitation:{name}"


def turn(ns: str, name: str) -> str:
    """Lock with a TTL: whose turn it is."""
    return f"{ns}:turn:{name}"


def secret(ns: str) -> str:
    """String: what ring keys are derived from where no cluster secret was set."""
    return f"{ns}:secret"


def events(ns: str) -> str:
    """Capped stream: what happened, for people."""
    return f"{ns}:events"


def messages(ns: str, queue: str, priority: int) -> str:
    """List: Celery's messages of one queue and priority, the tail is popped next (queues.broker_settings)."""
    return f"{ns}:celery:{queue}" + (f":{priority}" if priority else "")
