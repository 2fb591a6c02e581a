"""`python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: checkpoints of all ranks made one."""

from __future__ import annotations

import argparse

from .state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """Reads its arguments from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_prefix", required=True, help="what the paths of the checkpoints begin with")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="the pattern of what follows")
    parser.add_argument("--save_path", default="", help="where the whole one is written")
    given = parser.parse_args()
    _, target = consolidate_sharded_model_checkpoints(given.ckpt_prefix, given.ckpt_suffix, given.save_path)
    print(f"consolidated into {target}")


if __name__ == "__main__":
    main()
