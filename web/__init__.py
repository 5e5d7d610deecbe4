"""The web front: REST, OpenAI's API and pages over exo_celery.cluster. Flask lives here and nowhere else.

Nothing computes in a page: a view reads its request, calls one function of `cluster` and shapes the answer.
"""

from flask import Flask

from exo_celery.cluster import open_cluster
from exo_celery.settings import Settings, load
from web import (
    actions,
    api_jobs,
    api_nodes,
    auth,
    context,
    errors,
    health,
    live,
    login,
    openai,
    openai_batches,
    openai_files,
    pages,
    place,
    urls,
)

MAX_BODY_BYTES = 8 * 2**20  # a long prompt is some hundred kB


def create_app(settings: Settings | None = None) -> Flask:
    """Return the WSGI application; with no settings given they are read from the environment.

    Nothing connects here: with Redis away the front starts, and /readyz says so.
    """
    settings = settings or load()
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    context.install(app, open_cluster(settings))
    urls.install(app)
    errors.install(app)
    auth.install(app, settings)
    pages.install(app)
    for room in (health, api_jobs, api_nodes, openai, openai_files, openai_batches, pages, login, live, place, actions):
        app.register_blueprint(room.blueprint)
    return app
