"""What is known of both graphs: which value is which, stored numbers against what they should be, and hints."""
