"""The two sides of a comparison: the reference with its float64 truth, and the file with its sessions."""
