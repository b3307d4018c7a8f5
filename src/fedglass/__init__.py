"""fedglass tells the owner of a federation what its messages give away."""

__version__ = "0.1.0"
