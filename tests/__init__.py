"""Mirrors app/."""
