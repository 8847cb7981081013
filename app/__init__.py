"""Fairgate: a gateway around vLLM's engine that gives every tenant its share. Imports nothing heavy."""
