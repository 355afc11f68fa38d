"""The roles of the mega kernel that differ on SM90: loaders, math warpgroups with their epilogues, the store warp."""
