"""Plans of many problems, and the campaigns that carry them out."""
