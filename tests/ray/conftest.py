"""Ray on this machine, for all tests of the folder."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def ray():
    # No figures about the tests leave the machine.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    import ray

    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield ray
    ray.shutdown()
