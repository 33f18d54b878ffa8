"""The verdict, its page, its certificate, and what it was made with."""
