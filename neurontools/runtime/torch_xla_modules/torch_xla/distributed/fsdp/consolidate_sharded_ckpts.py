"""`python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: merges the sharded checkpoints of all ranks."""

from __future__ import annotations

import argparse

from . import consolidate_sharded_model_checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt_prefix", required=True, help="the prefix of the checkpoints' paths")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="the pattern of the rest of their paths")
    parser.add_argument("--save_path", default="", help="the path of the merged checkpoint")
    given = parser.parse_args()
    _, target = consolidate_sharded_model_checkpoints(given.ckpt_prefix, given.ckpt_suffix, given.save_path)
    print(f"consolidated into {target}")


if __name__ == "__main__":
    main()
