"""One Ray for the tests of a module that have their workers in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.controller.building.ray_head import RayHead
from headrace.runtime.ray.environment import prepare


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = dict(os.environ)
    prepare(None)
    ray = pytest.importorskip("ray", reason="pip install 'headrace[cluster]'")
    head = RayHead(2, tmp_path_factory.mktemp("ray") / "ray.log")
    try:
        ray.init(address=head.start(), log_to_driver=False, configure_logging=False)
        yield
    finally:
        ray.shutdown()
        head.close()
        os.environ.clear()
        os.environ.update(before)
