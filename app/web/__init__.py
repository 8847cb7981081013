"""The door: who is calling, how errors are answered, what operators see."""
