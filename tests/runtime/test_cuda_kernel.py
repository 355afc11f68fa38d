"""What can be said of a kernel on a GPU without one."""

import pytest

from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.kernels.moe.sm90.config import Sm90Config
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime.cuda_kernel import check_resident

PAIRS = Sm90Config.choose(PRESETS["pro"].problem(8192, recipe="fp8xfp8"), 8192, gpu=None)


def test_clusters_that_do_not_run_at_once_are_an_error() -> None:
    """Before anything is launched: the kernel's CTAs would wait for ones that never start."""
    assert (PAIRS.cluster, PAIRS.num_sms) == (2, 132)
    check_resident(PAIRS, 66)
    with pytest.raises(ConfigError, match=r"num_sms = 132: must be at most 130: so many CTAs, in clusters of 2, run at once on this GPU"):
        check_resident(PAIRS, 65)
