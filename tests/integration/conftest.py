"""Tests beside real frameworks run in environments of their own (`make test-flower`, `make test-nvflare`)."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [
    folder for folder, package in (("flower", "flwr"), ("nvflare", "nvflare")) if find_spec(package) is None
]
