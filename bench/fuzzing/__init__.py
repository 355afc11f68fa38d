"""Differential fuzzing: random layers on the simulator or a GPU, beside the reference, the unfused layer and another tile."""
