"""The file's numbers against what they follow from."""
