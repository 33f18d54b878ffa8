"""Coverage-guided fuzzing of everything that is read from elsewhere."""
