"""Python runs this at its start where this folder is on its path: the simulated GPU that the environment asks for (stand_in/gpu.py)."""

import os

if asked := os.environ.get("MEGAMOE_SIMULATED_GPU"):
    from stand_in.gpu import install

    arch, sms = asked.split(":")
    install(arch, int(sms))
