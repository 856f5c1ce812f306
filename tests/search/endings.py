"""Trials that have ended, for studies."""

from mltune.search.history import tell


def add_ended(study, distributions, record, score):
    """Add a trial to a study as a search does: asked for, and told."""
    study.enqueue_trial(dict(record.configuration))
    tell(study, study.ask(distributions), record, score)
