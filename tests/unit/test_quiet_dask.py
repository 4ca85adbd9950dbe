from __future__ import annotations

import dask
import distributed

from workbench import config


def test_what_dask_does_by_default_is_done_less_often():
    assert distributed.__version__
    assert config.quiet_dask() == {
        "distributed.worker.profile.interval": "100ms",
        "distributed.admin.tick.interval": "200ms",
    }


def test_what_a_user_has_set_is_left_alone():
    with dask.config.set({"distributed.worker.profile.interval": "5ms"}):
        assert config.quiet_dask() == {"distributed.admin.tick.interval": "200ms"}
