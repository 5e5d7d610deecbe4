"""What a caller may ask of a cluster: REST, the admin UI and the command line call these and nothing below."""

from exo_celery.cluster.catalog import add_model, model, models, servable_models
from exo_celery.cluster.downloading import (
    cancel_download,
    delete_download,
    download,
    downloads,
    start_download,
    verify_download,
)
from exo_celery.cluster.health import Cluster, clock, latest_events, nodes, open_cluster, readiness
from exo_celery.cluster.placing import (
    create_instances,
    delete_instance,
    instance,
    instances,
    place,
    place_for_work,
    preview,
    serving_state,
)
from exo_celery.cluster.submitting import (
    cancel_job,
    follow,
    job,
    job_counts,
    jobs,
    jobs_by_id,
    retry_job,
    submit,
    waiting_jobs,
)

__all__ = [
    "Cluster",
    "add_model",
    "cancel_download",
    "cancel_job",
    "clock",
    "create_instances",
    "delete_download",
    "delete_instance",
    "download",
    "downloads",
    "follow",
    "instance",
    "instances",
    "job",
    "job_counts",
    "jobs",
    "jobs_by_id",
    "latest_events",
    "model",
    "models",
    "nodes",
    "open_cluster",
    "place",
    "place_for_work",
    "preview",
    "readiness",
    "retry_job",
    "servable_models",
    "serving_state",
    "start_download",
    "submit",
    "verify_download",
    "waiting_jobs",
]
