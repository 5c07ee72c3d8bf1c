from nbrl.infra.process.shared import Budget


def test_so_many_restarts_in_a_window_and_no_more() -> None:
    now = 0.0
    budget = Budget(2, 600, lambda: now)
    assert [budget.spend(), budget.spend(), budget.spend()] == [True, True, False]
    now = 600.0
    assert [budget.spend(2), budget.spend()] == [True, False]
    assert str(budget) == "2 restarts in 10 minutes"
