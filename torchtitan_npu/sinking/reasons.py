"""How graph sinking says no."""

__all__ = ["CannotSink", "GraphSinkingWarning"]


class CannotSink(RuntimeError):
    """A module call that no graph can stand for; the message says why. Raised to users under ``strict=True``."""


class GraphSinkingWarning(UserWarning):
    """A module runs eagerly inside ``enable_graph()``."""
