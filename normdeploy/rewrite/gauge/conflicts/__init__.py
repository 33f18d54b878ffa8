"""Why a map has to stay: the equations that contradict each other, who states them, and the sentence."""
