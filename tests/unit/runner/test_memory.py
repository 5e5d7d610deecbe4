from exo_celery.runner.memory import UNKNOWN_ITEMS, kv_items_per_layer, token_budget

SMOL = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


def test_numbers_of_a_token() -> None:
    assert kv_items_per_layer(SMOL) == 2 * 3 * 64
    assert kv_items_per_layer(SMOL | {"head_dim": 128}) == 2 * 3 * 128
    assert kv_items_per_layer({}) == UNKNOWN_ITEMS


def test_the_budget_is_a_share_of_what_is_free() -> None:
    budget = token_budget(SMOL, 30, 4, 10**9)
    assert budget.live == 10**9 // 2 // (1536 * 30)
    assert budget.kept == budget.live // 5
    assert token_budget({"text_config": SMOL}, 30, 4, 10**9) == budget
    assert token_budget(SMOL, 30, 2, 10**9).live // 2 == budget.live
