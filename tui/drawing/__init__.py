"""Drawing on a grid of cells: pure functions over arrays, no widget and no terminal."""
