"""One of the two graphs by itself, as the checker sees it: sizes, constants, and what an operator alone tells."""
