"""What does mixed precision gain? Trials of a user's model, and the arithmetic of hours.

Imports no backend.
"""
