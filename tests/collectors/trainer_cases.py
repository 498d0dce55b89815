"""One rank that trains several settings one after the other and writes the losses of each.

torchrun --nproc-per-node 2 trainer_cases.py OUT.json '{"name": ["--flag", "value"]}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from collectors.trainer.loop import train
from collectors.trainer.settings import parse


def main() -> None:
    """Trains all cases in one process group."""
    out, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, flags in cases.items():
        settings = parse(flags)
        settings.check(dist.get_world_size())
        found[name] = train(settings, torch.device("cpu"))
        dist.barrier()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
