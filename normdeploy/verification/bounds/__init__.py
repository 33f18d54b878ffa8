"""What rounding explains: the criterion, and how far a correct run may be off."""
