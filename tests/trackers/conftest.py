"""One run for all trackers. Its modules come from the folder of whole runs."""

import pytest
from tracked_run import Tracked, make


@pytest.fixture(scope="session")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    return make(tmp_path_factory.mktemp("tracked"))
