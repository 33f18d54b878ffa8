"""Turns, pauses and numbers of rounds of measured times, for tests that ask what follows from times, and not of them.

Turns of 50 ms and pauses of 20 ms, fair to threads, are ten seconds a search; tests/runtime/test_latency.py asks of
those. Turns of the first look are a tenth as long too.
"""

_RUNTIME = "normdeploy.runtime"
SHORT = {
    f"{_RUNTIME}.latency.STRETCH": 0.0005,
    f"{_RUNTIME}.latency.PAUSE": 0.0,
    f"{_RUNTIME}.latency.MOST": 10,
    f"{_RUNTIME}.tuning.stopwatch.TURN": 0.0005,
}
"""Seconds, and rounds, by the name of what holds them."""
