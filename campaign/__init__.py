"""The campaign: random kills, floods, odd input, full disks and clock jumps against real processes, from a seed."""
