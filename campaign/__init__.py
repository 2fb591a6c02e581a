"""The campaign: kills, floods, odd input, full disks and clock jumps against real processes, by chance with a seed."""
