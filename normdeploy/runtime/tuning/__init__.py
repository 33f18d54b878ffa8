"""Tuning: candidates, how they are judged against a budget, how they are made, and the search."""
