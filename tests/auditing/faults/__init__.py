"""Small models with a planted mask fault each, and their healthy twins."""
