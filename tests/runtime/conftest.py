"""One Ray for the tests of a module that have their workers in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from unittest import mock

import pytest

from headrace.controller.building.ray_head import RayHead
from headrace.runtime.ray.environment import prepare


@pytest.fixture(scope="session")
def ray_environment() -> Mapping[str, str]:
    """What Ray has read once it is imported: the same for every module's."""
    with mock.patch.dict(os.environ):
        prepare(None)
        return dict(os.environ)


@pytest.fixture(scope="module")
def one_ray(ray_environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with mock.patch.dict(os.environ, ray_environment):
        ray = pytest.importorskip("ray", reason="pip install 'headrace[cluster]'")
        head = RayHead(2, tmp_path_factory.mktemp("ray") / "ray.log")
        try:
            ray.init(address=head.start(), log_to_driver=False, configure_logging=False)
            yield
        finally:
            ray.shutdown()
            head.close()


@pytest.fixture
def ray_imported(ray_environment: Mapping[str, str]) -> Iterator[None]:
    """For a test that starts none."""
    with mock.patch.dict(os.environ, ray_environment):
        pytest.importorskip("ray", reason="pip install 'headrace[cluster]'")
        yield
