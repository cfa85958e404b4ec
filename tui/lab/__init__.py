"""Things to see and move: what number formats do to numbers, steps, scales and memory."""
