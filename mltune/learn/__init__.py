"""Features, cost models, gates and the search that proposes configurations."""
