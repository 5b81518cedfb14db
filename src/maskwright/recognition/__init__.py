"""Recognition: the shortest mask expression for a given array."""
