"""Recorded federations on disk: written while they run, read with every check; docs/bundles.md has the format."""

from fedglass.recordings.reader import Bundle, read_bundle
from fedglass.recordings.writer import BundleWriter, RoundWriter

__all__ = ["Bundle", "BundleWriter", "RoundWriter", "read_bundle"]
