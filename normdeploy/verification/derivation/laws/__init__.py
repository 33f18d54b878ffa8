"""How gauges pass operators, law by law."""
