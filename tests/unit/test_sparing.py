from __future__ import annotations

import dask
import distributed

from workbench.head import quiet_dask


def test_what_dask_does_by_default_is_done_less_often():
    assert distributed.__version__
    assert quiet_dask.settings() == {
        "distributed.worker.profile.interval": "100ms",
        "distributed.admin.tick.interval": "200ms",
    }


def test_what_a_user_has_set_is_left_alone():
    with dask.config.set({"distributed.worker.profile.interval": "5ms"}):
        assert quiet_dask.settings() == {"distributed.admin.tick.interval": "200ms"}
