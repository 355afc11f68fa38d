"""The roles of the mega kernel that differ on SM100: loaders, MMA warp, epilogues."""
