"""Where a failure starts, what it looks like, and a bundle that shows it again."""
