"""Well-known MLX models as facts, so that one can be placed before anybody has asked the hub.

Shapes are those of the models' published configs. Bytes follow from them: 4 bit in groups of 64 with a scale and a bias
in 16 bit each, norms in 16 bit (mlx-lm's default quantisation); the headers of the files come on top.
"""

from typing import Final, NamedTuple

from exo_celery.records.model import ModelCard

BITS_PER_WEIGHT: Final = 4 + 2 * 16 / 64
NORM_BYTES: Final = 2
KV_ELEMENT_BYTES: Final = 2


class Shape(NamedTuple):
    """A dense llama-like model: linear layers of `hidden` to `heads * head`, `kv * head` and `inner`."""

    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv: int
    head: int
    vocab: int
    tied: bool
    context: int
    bias: bool = False  # of q, k and v
    qk_norm: bool = False

    @property
    def linear_weights(self) -> int:
        """Weights of the linear parts of all layers."""
        attention = 2 * self.hidden * self.head * (self.heads + self.kv)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def vectors(self) -> int:
        """Numbers in norms and biases."""
        per_layer = 2 * self.hidden + 2 * self.head * self.qk_norm + self.head * (self.heads + 2 * self.kv) * self.bias
        return self.layers * per_layer + self.hidden

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding; the head has as many."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model, as its page counts them."""
        return self.linear_weights + self.vectors + self.embedding_weights * (1 if self.tied else 2)


LLAMA, QWEN2, QWEN3, MISTRAL = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"
SHAPES: Final = {
    "mlx-community/Llama-3.2-1B-Instruct-4bit": Shape(LLAMA, 16, 2048, 8192, 32, 8, 64, 128256, True, 131072),
    "mlx-community/Llama-3.2-3B-Instruct-4bit": Shape(LLAMA, 28, 3072, 8192, 24, 8, 128, 128256, True, 131072),
    "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit": Shape(LLAMA, 32, 4096, 14336, 32, 8, 128, 128256, False, 131072),
    "mlx-community/Llama-3.3-70B-Instruct-4bit": Shape(LLAMA, 80, 8192, 28672, 64, 8, 128, 128256, False, 131072),
    "mlx-community/Mistral-7B-Instruct-v0.3-4bit": Shape(MISTRAL, 32, 4096, 14336, 32, 8, 128, 32768, False, 32768),
    "mlx-community/Qwen2.5-7B-Instruct-4bit": Shape(
        QWEN2, 28, 3584, 18944, 28, 4, 128, 152064, False, 32768, bias=True
    ),
    "mlx-community/Qwen3-0.6B-4bit": Shape(QWEN3, 28, 1024, 3072, 16, 8, 128, 151936, True, 40960, qk_norm=True),
    "mlx-community/Qwen3-4B-4bit": Shape(QWEN3, 36, 2560, 9728, 32, 8, 128, 151936, True, 40960, qk_norm=True),
    "mlx-community/Qwen3-8B-4bit": Shape(QWEN3, 36, 4096, 12288, 32, 8, 128, 151936, False, 40960, qk_norm=True),
    "mlx-community/Qwen3-32B-4bit": Shape(QWEN3, 64, 5120, 25600, 64, 8, 128, 151936, False, 40960, qk_norm=True),
}


def well_known(model_id: str) -> ModelCard | None:
    """Return the card of a well-known model, or None."""
    shape = SHAPES.get(model_id)
    if shape is None:
        return None
    embedding = quantised(shape.embedding_weights)
    layers = quantised(shape.linear_weights) + shape.vectors * NORM_BYTES
    return ModelCard(
        id=model_id,
        storage_bytes=layers + embedding * (1 if shape.tied else 2),
        n_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv,
        supports_tensor=True,
        architecture=shape.architecture,
        quantization="4-bit",
        context_length=shape.context,
        embedding_bytes=embedding,
        head_bytes=embedding,
        layers_bytes=layers,
        kv_bytes_per_token=2 * shape.layers * shape.kv * shape.head * KV_ELEMENT_BYTES,
        source="built-in",
    )


def quantised(weights: int) -> int:
    """Return the bytes of linear weights in 4 bit, scales and biases included."""
    return int(weights * BITS_PER_WEIGHT / 8)
