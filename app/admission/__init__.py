"""Who goes next, and how much at once."""
