from exo_celery.runner.memory import UNKNOWN_BYTES, kv_bytes_per_layer, token_budget

SMOL = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


def test_bytes_of_a_token() -> None:
    assert kv_bytes_per_layer(SMOL) == 2 * 3 * 64 * 4
    assert kv_bytes_per_layer(SMOL | {"head_dim": 128}) == 2 * 3 * 128 * 4
    assert kv_bytes_per_layer({}) == UNKNOWN_BYTES


def test_the_budget_is_a_share_of_what_is_free() -> None:
    budget = token_budget(SMOL, 30, 10**9)
    assert budget.live == 10**9 // 2 // (1536 * 30)
    assert budget.kept == budget.live // 10
    assert token_budget({"text_config": SMOL}, 30, 10**9) == budget
