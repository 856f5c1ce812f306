"""What is known before a run begins: the best configurations of earlier ones."""
