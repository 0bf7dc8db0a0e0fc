"""The running requests, and apart from them those whose rows are planned one by one."""

from __future__ import annotations

from depthchart.scheduler.request import Job, Stride

__all__ = ["Running"]


class Running:
    """``jobs``: all that run, by request, in order of admission (to be read only)."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._apart: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job) -> None:
        self.jobs[job.request_id] = self._apart[job.request_id] = job

    def remove(self, job: Job) -> None:
        del self.jobs[job.request_id]
        self._apart.pop(job.request_id, None)

    def begin_stride(self, job: Job, stride: Stride) -> None:
        job.stride = stride
        del self._apart[job.request_id]

    def end_stride(self, job: Job) -> None:
        job.stride = None
        self._apart[job.request_id] = job

    def apart(self) -> list[Job]:
        """The jobs that are in no stride, in order of admission."""
        return by_admission(list(self._apart.values()))


def by_admission(jobs: list[Job]) -> list[Job]:
    """Jobs in order of admission."""
    return sorted(jobs, key=_admitted) if len(jobs) > 1 else jobs


def _admitted(job: Job) -> int:
    return job.admitted
