"""Results of runs: the reader of stored runs, summaries, ratings, the audit of skips, progress and messages."""
