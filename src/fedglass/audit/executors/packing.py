"""Jobs and results as bytes."""

from __future__ import annotations

import pickle

from fedglass.core.errors import UsageError


class Unsendable(UsageError):
    """A job that only the process that made it can do."""


def packed(job: object) -> bytes:
    """The job as bytes, or a sentence on why it has none."""
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Unsendable(
            f"The case can not be sent to a worker process ({error}): define the model and the parts in an "
            "importable module, or set workers to 1."
        ) from error
