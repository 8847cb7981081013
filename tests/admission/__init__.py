"""The rules of admission, in simulated time."""
