"""Reports: findings of a run or a campaign with their evidence, as HTML, Markdown and JSON."""
