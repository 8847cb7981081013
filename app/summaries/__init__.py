"""Documents in, summaries and answers out, as scheduled work."""
