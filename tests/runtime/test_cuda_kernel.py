"""What can be said of a kernel on a GPU without one."""

import pytest

from megamoe_dsl import SM90, Target, choose
from megamoe_dsl.config_error import ConfigError
from megamoe_dsl.presets import PRESETS
from megamoe_dsl.runtime.cuda_kernel import check_resident

PAIRS = choose(PRESETS["pro"].problem(8192, recipe="fp8xfp8"), Target(SM90, 132), 8192)


def test_clusters_that_do_not_run_at_once_are_an_error() -> None:
    """Before anything is launched: the kernel's CTAs would wait for ones that never start."""
    assert (PAIRS.cluster, PAIRS.num_sms) == (2, 132)
    check_resident(PAIRS, 66)
    with pytest.raises(ConfigError, match=r"num_sms = 132: must be at most 130: so many CTAs, in clusters of 2, run at once on this GPU"):
        check_resident(PAIRS, 65)
