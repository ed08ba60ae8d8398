"""Draws the programs of GPU campaigns on a machine without a GPU.

`cdmpp measure` with the same configuration continues on the machine with the GPU.

    python -m lab.gpu_session.draw configs/measure/sealed-gpu.yaml FOLDER
    python -m lab.gpu_session.draw --here FOLDER...

The second form records this machine in the folders as the measuring machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdmpp.config import from_dict, read_yaml
from cdmpp.files.atomic import read_json, write_json
from cdmpp.processes.campaign import CAMPAIGN_FILE, campaign_folder
from tvm_helper.measure.campaign import Campaign
from tvm_helper.measure.health import machine
from tvm_helper.measure.journal import Journal
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import campaign_tasks, reference_task
from tvm_helper.measure.target import measure_target


class DrawnCampaign(Campaign):
    """A campaign that only draws programs."""

    def draw(self) -> int:
        """Draws missing programs; returns the total number of programs."""
        with campaign_folder(self._folder, what="measuring campaign"):
            self._settle()
            with Journal(self._folder) as self._journal, self._runner(None) as trials:
                self._show = lambda progress: print(progress.done, "of", progress.total)
                self._draw(trials)
                return sum(len(entry["programs"]) for entry in self._journal.of_kind("drawn"))


def main() -> None:
    """Runs the requested form."""
    if sys.argv[1] == "--here":
        for path in (Path(name) / CAMPAIGN_FILE for name in sys.argv[2:]):
            value = read_json(path, what="campaign", hint="")
            write_json(path, {**value, "machine": machine()})
        return
    options = from_dict(MeasureOptions, read_yaml(Path(sys.argv[1])))
    target = measure_target(options)
    tasks = campaign_tasks(options, target.tvm_target(), lambda done, total: None)
    campaign = DrawnCampaign(options, Path(sys.argv[2]), tasks, target, reference=reference_task())
    print(campaign.draw(), "programs")


if __name__ == "__main__":
    main()
