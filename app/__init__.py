"""Fairgate: a gateway around vLLM that gives every tenant its share. Imports nothing heavy."""
