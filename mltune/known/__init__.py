"""Knowledge that a run may start from: the best configurations of earlier runs."""
