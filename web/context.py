"""What every view needs: the cluster that this application speaks for."""

from typing import Final

from flask import Flask, current_app

from exo_celery.cluster import Cluster

KEY: Final = "exo_cluster"


def install(app: Flask, cluster: Cluster) -> None:
    """Give the application its cluster."""
    app.extensions[KEY] = cluster


def the_cluster() -> Cluster:
    """Return the cluster of the application that answers the current request."""
    cluster: Cluster = current_app.extensions[KEY]
    return cluster
