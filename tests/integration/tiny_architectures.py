"""Tiny random models of many architectures, made with mlx-lm's own classes."""

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

LAYERS = 6
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 256,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "sliding_window": 8,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 3
EVERY_THIRD_FULL = ["sliding_attention", "sliding_attention", "full_attention"] * 2
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GATED_DELTA = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, sliding": {"layer_types": EVERY_THIRD_FULL},
    "llama, own head": {"tie_word_embeddings": False},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "qwen3_next": EXPERTS | GATED_DELTA | {"shared_expert_intermediate_size": 32, "partial_rotary_factor": 0.5},
    # On a tensor ring its head is cut too.
    "qwen3_5": GATED_DELTA | {"tie_word_embeddings": False},
    # On a tensor ring its norms add up too.
    "minimax": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "rotary_dim": 8,
    },
    "ministral3": {
        "layer_types": EVERY_THIRD_FULL,
        "attention_bias": False,
        "rope_parameters": {
            "rope_theta": 1e4,
            "original_max_position_embeddings": 512,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "phi": {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5, "rotary_emb_base": 1e4},
    "phi3": {"rope_scaling": None},
    "gemma": {},
    "gemma2": {
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 16,
    },
    "gemma3_text": {"sliding_window_pattern": 3, "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4},
    "olmo2": {},
    "olmo3": {"layer_types": EVERY_THIRD_FULL},
    "starcoder2": {"norm_epsilon": 1e-5},
    "granite": {
        "logits_scaling": 1.0,
        "attention_multiplier": 0.25,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "smollm3": {"no_rope_layers": [1, 1, 0] * 2, "no_rope_layer_interval": 3},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ALTERNATING,
        "initial_context_length": 64,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "exaone4": {"sliding_window_pattern": "LLG", "rope_scaling": None},
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": None,
    },
    "mamba2": {
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "expand": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "chunk_size": 16,
        "time_step_limit": (0.0, 100.0),
        "time_step_rank": "auto",
        "layer_norm_epsilon": 1e-5,
    },
}


def build(name: str) -> Any:
    """Return the same random model of an architecture on every call."""
    module = importlib.import_module("mlx_lm.models." + name.split(",")[0])
    config = COMMON | ARCHITECTURES[name] | {"model_type": name.split(",")[0]}
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(config))

    def disturbed(array: mx.array) -> mx.array:
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        return (array + 0.05 * mx.random.normal(array.shape)).astype(array.dtype)

    # Parameters that begin as zeros would hide mistakes.
    mx.random.seed(3)
    model.update(tree_map(disturbed, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model
