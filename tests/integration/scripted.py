"""A real llama that says what a test wants: its layers add nothing, and its head leads from each token to the next.

It offers three beginnings, chosen by its chat template: a call of a function, what follows a function's result, and
what it says when it was shown no functions.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from ring_group import demo_model
from safetensors.numpy import save_file

LAYERS: Final = 4
HIDDEN: Final = 128
VOCABULARY: Final = 49152
END: Final = 2
WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell how the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLING: Final = 'I look.\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
ANSWERING: Final = "Sunny, 21 degrees."
PLAIN: Final = "Who knows?"
PIECE: Final = 5  # characters of a token of a script: marks are cut anywhere
# Which begins after which token, all of them single tokens of the demo model's tokenizer.
SCRIPTS: Final = {"<repo_name>": CALLING, "<file_sep>": ANSWERING, "<gh_stars>": PLAIN}
TEMPLATE: Final = """\
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}\
<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>
{% endfor %}{% endfor %}\
{{ '<file_sep>' if messages[-1].role == 'tool' else '<repo_name>' if tools else '<gh_stars>' }}"""


def scripted_model(folder: Path, template: str = TEMPLATE) -> Path:
    """Write the model's folder."""
    folder.mkdir(parents=True)
    for path in demo_model().glob("tokenizer*"):
        shutil.copy(path, folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"chat_template": template}))
    (folder / "config.json").write_text(json.dumps(config()))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    following = successors(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file(weights(following), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eos_token_id": END,
    }


def successors(tokenizer: dict[str, Any]) -> dict[int, int]:
    """Return the token that follows each token of the scripts, which get tokens of their own in the tokenizer."""
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    following: dict[int, int] = {}
    for begin, text in SCRIPTS.items():
        spelled = text.replace(" ", "Ġ").replace("\n", "Ċ")
        pieces = [spelled[at : at + PIECE] for at in range(0, len(spelled), PIECE)]
        chain = [ids[begin], *(new_token(tokenizer, piece) for piece in pieces), END]
        assert len(set(chain[:-1]) | set(following)) == len(chain) - 1 + len(following), f"{text!r} repeats a token"
        following |= dict(pairwise(chain))
    return following


def new_token(tokenizer: dict[str, Any], piece: str) -> int:
    """Give a piece that is no token yet the one that the last merge of two others made, which is no more."""
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    if piece in ids:
        return ids[piece]
    merge = tokenizer["model"]["merges"].pop()
    ids[piece] = ids.pop("".join(merge.split(" ") if isinstance(merge, str) else merge))
    return ids[piece]


def weights(following: dict[int, int]) -> dict[str, Any]:
    """Return weights by which the likeliest token after each is its successor."""
    random = np.random.default_rng(5)
    embedding = np.zeros((VOCABULARY, HIDDEN), np.float32)
    embedding[list(following)] = random.choice([-1.0, 1.0], (len(following), HIDDEN))
    head = np.zeros_like(embedding)
    for token, successor in following.items():
        head[successor] += embedding[token]
    arrays = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": np.ones(HIDDEN)}
    shapes = {
        "self_attn.q_proj": (128, HIDDEN),
        "self_attn.k_proj": (64, HIDDEN),
        "self_attn.v_proj": (64, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 128),
        "mlp.gate_proj": (128, HIDDEN),
        "mlp.up_proj": (128, HIDDEN),
        "mlp.down_proj": (HIDDEN, 128),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        arrays |= {at + f"{name}.weight": np.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
        arrays |= {at + f"{name}.weight": np.zeros(shape) for name, shape in shapes.items()}
    return {name: array.astype(np.float32) for name, array in arrays.items()}
