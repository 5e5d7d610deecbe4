"""Making another machine a node: an invitation on one side, joining with it on the other.

The cluster secret is never sent as it is: it lies in Redis for a quarter of an hour, sealed with a one-time code that
only the printed command carries, and it is gone when it was taken.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exo_celery.errors import ConfigurationError, UnavailableError
from exo_celery.local.layout import private
from exo_celery.node import fit, trust
from exo_celery.settings import Settings, load, read_secret
from exo_celery.store import invitations
from exo_celery.store.client import TRANSIENT, AuthenticationError, Redis, connect

CODE_BYTES: Final = 10
SALT_BYTES: Final = 16
TAG_BYTES: Final = 32
CURE: Final = "Is it running, bound to an address of the network and not only loopback, and its port open?"


@dataclass(frozen=True)
class Invitation:
    """What a newcomer is given besides the machine it runs on."""

    redis_url: str
    namespace: str
    code: str | None = None
    secret_file: Path | None = None
    data_dir: Path | None = None


def invite(settings: Settings) -> str:
    """Return the command that makes another machine a node of this cluster.

    Raises:
        ConfigurationError: this cluster's Redis is on loopback or has no password.
    """
    fit.check_reachable(settings.redis_url)
    fit.check_password(settings.redis_url)
    command = f"exo-celery join {settings.redis_url}"
    if settings.namespace != Settings().namespace:
        command += f" --namespace {settings.namespace}"
    if not settings.cluster_secret:
        return command  # the nodes share a secret through Redis: the address is enough
    code = secrets.token_hex(CODE_BYTES)
    with connect(settings) as redis:
        invitations.leave(redis, settings.namespace, name_of(code), seal(settings.cluster_secret, code))
    return f"{command} --code {code}"


def join(invitation: Invitation, environ: Mapping[str, str]) -> dict[str, str]:
    """Check that this machine fits, keep the secret (0600), and return the environment of its node worker.

    Raises:
        UnavailableError: Redis does not answer.
        ConfigurationError: the password, the code, the secret, the clock or a version is wrong.
    """
    given = {"EXO_REDIS_URL": invitation.redis_url, "EXO_NAMESPACE": invitation.namespace}
    if invitation.data_dir:
        given["EXO_DATA_DIR"] = str(invitation.data_dir)
    settings = load(dict(environ) | given)
    try:
        with connect(settings, retries=1) as redis:
            secret = secret_of(invitation, settings, redis)
            proof = trust.proof(secret or trust.cluster_secret(settings, redis))
            fit.check(settings, redis, proof)
    except AuthenticationError as error:
        raise ConfigurationError(f"Redis refuses the password in the address: {error}") from error
    except TRANSIENT as error:
        raise UnavailableError(f"{fit.where(settings.redis_url)} does not answer: {error}. {CURE}") from error
    if secret:
        given["EXO_CLUSTER_SECRET_FILE"] = str(keep(secret, settings.data_dir))
    return dict(environ) | given


def secret_of(invitation: Invitation, settings: Settings, redis: Redis) -> str | None:
    """Return the cluster's secret from the code or the file, None where neither was given nor is one set.

    Raises:
        ConfigurationError: the code is wrong, used or too old.
    """
    if invitation.secret_file:
        return read_secret(invitation.secret_file)
    if not invitation.code:
        return settings.cluster_secret or kept(settings.data_dir)
    sealed = invitations.take(redis, settings.namespace, name_of(invitation.code))
    if sealed is None:
        raise ConfigurationError(
            "the code is wrong, was used before, or is older than a quarter of an hour: "
            "run `exo-celery invite` again on a node of the cluster"
        )
    return unseal(sealed, invitation.code)


def keep(secret: str, data_dir: Path) -> Path:
    """Write the secret where only this user reads it."""
    path = data_dir / "cluster_secret"
    data_dir.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(path, "x", opener=private) as file:
        file.write(secret)
    return path


def kept(data_dir: Path) -> str | None:
    """Return the secret of an earlier join."""
    path = data_dir / "cluster_secret"
    return read_secret(path) if path.exists() else None


def name_of(code: str) -> str:
    """Return the name under which an invitation lies in Redis; it does not show the code."""
    return hashlib.sha256(b"exo-celery invitation " + code.encode()).hexdigest()


def seal(secret: str, code: str) -> str:
    """Return the secret under a one-time pad and a tag, both drawn from the code with scrypt (RFC 7914)."""
    salt, text = os.urandom(SALT_BYTES), secret.encode()
    pad, key = draw(code, salt, len(text))
    body = salt + bytes(a ^ b for a, b in zip(text, pad, strict=True))
    return (body + hmac.digest(key, body, "sha256")).hex()


def unseal(sealed: str, code: str) -> str:
    """Return the secret.

    Raises:
        ConfigurationError: somebody changed what lay in Redis.
    """
    raw = bytes.fromhex(sealed)
    body, tag = raw[:-TAG_BYTES], raw[-TAG_BYTES:]
    salt, text = body[:SALT_BYTES], body[SALT_BYTES:]
    pad, key = draw(code, salt, len(text))
    if not hmac.compare_digest(tag, hmac.digest(key, body, "sha256")):
        raise ConfigurationError("the invitation in Redis was tampered with: who else can write there?")
    return bytes(a ^ b for a, b in zip(text, pad, strict=True)).decode()


def draw(code: str, salt: bytes, size: int) -> tuple[bytes, bytes]:
    """Return a pad of so many bytes and a key, used once."""
    drawn = hashlib.scrypt(code.encode(), salt=salt, n=2**14, r=8, p=1, dklen=size + TAG_BYTES)
    return drawn[:size], drawn[size:]
