"""Every error a caller can act on: one base, one class per thing to do about it.

A message says what was asked, what was found and what to do. `code` is stable and ends up in OpenAI's error shape;
`status` is the HTTP status that the web front answers with; `param` names the field at fault, if one is.
"""

from typing import Any


class ExoError(Exception):
    """Base of all errors that are meant for a caller."""

    code = "internal_error"
    status = 500
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, **numbers: Any) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.numbers = numbers


class InvalidRequestError(ExoError):
    """A field of the request is missing, of the wrong type or out of range: correct it and ask again."""

    code = "invalid_request"
    status = 400
    kind = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room in the model's context: shorten it."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequestError):
    """The model's chat template refused the messages: change the messages or send a plain prompt."""

    code = "template_error"


class AccessError(ExoError):
    """The guard did not let the request in: come from loopback, or bring a key."""

    code = "access_denied"
    status = 403
    kind = "permission_error"


class InvalidKeyError(AccessError):
    """No API key came, or one that is unknown, revoked or expired: bring a good one."""

    code = "invalid_api_key"
    status = 401
    kind = "authentication_error"


class RateLimitError(ExoError):
    """The API key has used up its requests of this minute: ask again after `retry_after_seconds`."""

    code = "rate_limit_exceeded"
    status = 429
    kind = "rate_limit_error"


class NotFoundError(ExoError):
    """The named thing does not exist: the message lists what does."""

    code = "not_found"
    status = 404
    kind = "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    """No card of that model is known, or it cannot be served."""

    code = "model_not_found"


class ConflictError(ExoError):
    """The state of things does not allow it now (in use, already there): the message says what stands in the way."""

    code = "conflict"
    status = 409
    kind = "conflict_error"


class IdempotencyError(ExoError):
    """An Idempotency-Key came again with another request: take a new key. Not a 409, which clients send again."""

    code = "idempotency_key_reused"
    status = 422
    kind = "invalid_request_error"


class PlacementError(ConflictError):
    """No ring of nodes can hold the model: `code` names the rule that emptied the list, the numbers say by how much."""

    code = "no_placement"

    def __init__(self, message: str, *, code: str, **numbers: Any) -> None:
        super().__init__(message, **numbers)
        self.code = code


class ModelLoadingError(ExoError):
    """The model is known but no instance is ready yet: ask again after `retry_after_seconds`."""

    code = "model_loading"
    status = 503
    kind = "server_error"


class UnavailableError(ExoError):
    """Redis or the workers cannot be reached now: try again."""

    code = "unavailable"
    status = 503
    kind = "server_error"


class TooLargeError(ExoError):
    """A file is larger than one may be: split it."""

    code = "file_too_large"
    status = 413
    kind = "invalid_request_error"


class StorageFullError(ExoError):
    """The files of all callers fill their quota: delete some, or raise it."""

    code = "storage_full"
    status = 507
    kind = "server_error"


class StaleWriteError(ExoError):
    """A write carried an old version, attempt or epoch and was refused: read again and decide again."""

    code = "stale_write"
    status = 409
    kind = "conflict_error"


class ModelFolderError(ExoError):
    """A model folder is not usable: the message names the file and what is wrong with it."""

    code = "model_folder"
    status = 409
    kind = "conflict_error"


class DownloadError(ExoError):
    """A download failed for good: the message says why and what cures it."""

    code = "download_failed"
    status = 502


class DownloadInterruptedError(DownloadError):
    """Something that may pass stopped a download: the bytes are kept, it goes on by itself.

    `numbers["retry_after_seconds"]` is how long the other side asked us to wait, where it did.
    """

    code = "download_interrupted"
    status = 503


class DownloadCancelledError(ExoError):
    """The download's wish was withdrawn while it ran; the bytes are kept."""

    code = "download_cancelled"
    status = 409
    kind = "conflict_error"


class RunnerError(ExoError):
    """A runner process refused, failed or died: its ring is formed again."""

    code = "runner_failed"


class LinkError(RunnerError):
    """A link between two ranks could not be made or broke."""

    code = "link_failed"


class ConfigurationError(ExoError):
    """A setting or the machine is not as it must be: the message says which and how to set it (exit code 78)."""

    code = "configuration"
