"""What a worker process is told when it starts. Runs in the launcher."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from easyscale.core.messages import WorkerConfig
from easyscale.core.placement import Placement
from easyscale.launch.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Configs:
    """Makes the configuration of each worker of a run.

    Attributes:
        log_dir: where workers write what their ESTs print.
        working_dir: that of the launcher when the run began.
        store_path: what names of rendezvous stores begin with.
    """

    spec: RunSpec
    log_dir: str
    working_dir: str
    store_path: str

    def of(
        self, worker: int, placement: Placement, speeds: list[list[float]], *, is_joiner: bool = False
    ) -> WorkerConfig:
        """For a worker that starts in ``placement``, or joins a job that is there now."""
        spec, rules = self.spec, self.spec.elasticity
        is_known = spec.is_num_ests_explicit or is_joiner
        return WorkerConfig(
            worker_rank=worker,
            num_workers=placement.num_workers,
            placement=str(placement) if is_known else None,
            store_path=self.store_path,
            script=spec.script,
            overrides=dict(spec.overrides),
            is_num_ests_explicit=spec.is_num_ests_explicit,
            watch=spec.watch,
            log_dir=self.log_dir,
            working_dir=self.working_dir,
            search_path=sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:],
            may_move=rules.may_move or spec.checkpoint is not None,
            is_joiner=is_joiner,
            stops=[step for step, _ in rules.schedule],
            faults=[replace(f, claim=f"{self.store_path}-fault-{n}") for n, f in enumerate(rules.faults)],
            speeds=speeds,
            checkpoint=spec.checkpoint,
            grace_s=spec.grace_s,
        )
