"""Where a job's steps were skipped, as columns for the charts."""

import numpy as np

from keras_mp.telemetry.jobs import Job
from tui.table import Table


def skips_of(job: Job, before: Table | None = None) -> Table:
    """Step and time of each skipped step; ``before``, made of the same job, if it still holds."""
    last = float(job.overflows[-1].step) if job.overflows else np.nan
    same = before is not None and len(before) == len(job.overflows)
    if before is not None and same and (not len(before) or before["step"][-1] == last):
        return before
    columns = {
        "step": np.array([o.step for o in job.overflows], dtype=np.float64),
        "time": np.array([o.time for o in job.overflows], dtype=np.float64),
    }
    return Table(columns)
