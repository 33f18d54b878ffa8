"""The tuner's turns and pauses, for tests that ask what follows from times, and not of them.

Turns of 50 ms and pauses of 20 ms, fair to threads, are ten seconds a search; tests/runtime/test_latency.py asks of
those. Turns of the first look are a tenth as long too.
"""

_TUNING = "normdeploy.runtime.tuning"
SHORT = {
    **{f"{_TUNING}.{module}.STRETCH": 0.002 for module in ("trials", "final_comparison", "opponent")},
    **{f"{_TUNING}.{module}.PAUSE": 0.0 for module in ("trials", "final_comparison", "opponent")},
    f"{_TUNING}.first_look.TURN": 0.001,
}
"""Seconds, by the name of what holds them."""
