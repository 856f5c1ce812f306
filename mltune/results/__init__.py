"""Reading runs: one reader of a stored run, and its summary, rating, audit and progress."""
