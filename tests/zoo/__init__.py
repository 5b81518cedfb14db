"""Small models with a mask fault planted in each, and their healthy twins."""
