"""With HEADRACE_TEST_PAGES engines keep keys and values in pages on a CPU too, as they do on a device."""

import os

import pytest

PAGES = "HEADRACE_TEST_PAGES"


@pytest.fixture(autouse=True)
def pages_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    if PAGES in os.environ:
        monkeypatch.setattr("headrace.engines.embedded.engine.is_paged", lambda device, model_config: True)
