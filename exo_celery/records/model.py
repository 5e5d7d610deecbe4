"""Model cards: the facts about a checkpoint."""

from pydantic import Field

from exo_celery.records.base import ModelId, Record, Request

BACKENDS = ("MlxMetal", "MlxCuda", "MlxCpu")


class ModelCard(Record):
    """What placement and people need to know of a model; bytes are those of the files unless said otherwise."""

    id: ModelId
    storage_bytes: int = Field(ge=0)
    n_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    supports_tensor: bool = False
    tensor_parts: int | None = None  # what the size of a tensor ring divides, besides hidden size and KV heads
    backends: tuple[str, ...] = BACKENDS
    architecture: str = ""
    quantization: str = ""
    context_length: int | None = None
    # Where the split may be weighed: bytes that rank 0 and the last rank hold besides their layers.
    embedding_bytes: int | None = None
    head_bytes: int | None = None
    layers_bytes: int | None = None  # all layers together
    kv_bytes_per_token: int | None = None
    revision: str = ""
    source: str = ""
    created_at: float = 0.0


class AddModel(Request):
    """What `POST /api/models` takes: a model id, and the folder that holds it where it is not found by its id."""

    model: ModelId
    path: str | None = None
