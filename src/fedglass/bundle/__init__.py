"""Recorded federations on disk: written while they run, read with every check; docs/bundles.md has the format."""

from fedglass.bundle.check import read_bundle
from fedglass.bundle.reader import Bundle
from fedglass.bundle.round_writer import RoundWriter
from fedglass.bundle.writer import BundleWriter

__all__ = ["Bundle", "BundleWriter", "RoundWriter", "read_bundle"]
