"""Plans: what a night does, in which order, and how its time is shared out."""
