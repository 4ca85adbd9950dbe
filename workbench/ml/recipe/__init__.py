"""Feature engineering: the steps of a recipe, their fit in one pass, and a fitted recipe."""
