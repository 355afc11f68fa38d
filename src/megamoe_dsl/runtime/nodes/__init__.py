"""The layer over several NVLink domains: torch.distributed moves rows between nodes, a layer of one domain does the rest."""
