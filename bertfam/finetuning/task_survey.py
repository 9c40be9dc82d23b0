"""Survey of a seqio task, in a child process where this one must not import TensorFlow.

The child runs `python -m bertfam.finetuning.task_survey`.
"""

import sys

from bertfam.data.parallel.child_answers import answer, ask
from bertfam.data.seqio_tasks.labelled_tasks import LabelledTask, TargetTask
from bertfam.finetuning.survey import Survey, survey


def survey_task(corpus: LabelledTask | TargetTask) -> Survey:
    """Do as `survey`, in a child process unless this one has imported seqio already.

    Raises:
      UserError: as `survey`.
      SystemExit: the child failed; it has printed the reason.
    """
    if "seqio" in sys.modules:
        return survey(corpus)
    contents: Survey = ask(__name__, corpus)
    return contents


if __name__ == "__main__":
    answer(survey)
