"""What a training process notes for a profile: a ring that the runtime fills, who takes from it, and the files made."""
