"""/login: a browser shows an admin's API key once and gets a session, which ends with the key."""

from typing import Any, Final

from flask import Blueprint, Response, make_response, redirect, render_template, request

from exo_celery import access as keys
from exo_celery.errors import AccessError, InvalidKeyError
from exo_celery.store.keys import SESSION_TTL
from web import access
from web.auth import SESSION
from web.context import the_cluster

blueprint: Final = Blueprint("login", __name__)


@blueprint.app_context_processor
def session_facts() -> dict[str, Any]:
    """Tell templates whether there is a session to end."""
    return {"logged_in": bool(request.cookies.get(SESSION)) and access.caller() is not None}


@blueprint.get("/login")
def form() -> str:
    """Show the form."""
    return render_template("login.html", problem="")


@blueprint.post("/login")
def log_in() -> Response:
    """Open a session for an admin's key and go to the first page."""
    try:
        session = keys.log_in(the_cluster(), request.form.get("key", "").strip())
        key = keys.of_session(the_cluster(), session)
        if key is None or not key.is_admin:
            keys.log_out(the_cluster(), session)
            raise AccessError("the pages are for keys of scope admin; this one works for the APIs it is for")
    except (InvalidKeyError, AccessError) as refusal:
        return make_response(render_template("login.html", problem=refusal.message), refusal.status)
    response: Response = redirect("/", 303)  # type: ignore[assignment]  # werkzeug's own response
    response.set_cookie(
        SESSION, session, max_age=SESSION_TTL, httponly=True, samesite="Strict", secure=request.is_secure
    )
    return response


@blueprint.post("/logout")
def log_out() -> Response:
    """End the browser's session."""
    keys.log_out(the_cluster(), request.cookies.get(SESSION, ""))
    response = make_response()
    response.headers["HX-Redirect"] = "/login"
    response.delete_cookie(SESSION, httponly=True, samesite="Strict")
    return response
