"""Linear regression and ridge regression."""
