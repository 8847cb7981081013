"""The room of the engine: the only one that imports vLLM, and only when it is asked to."""
