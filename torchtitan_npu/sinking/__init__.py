"""Graph sinking: whole module calls run as one recorded graph (docs/graph.md).

A call goes through these files: ``block.py`` sees the outermost module call inside ``enable_graph()``; ``cache.py``
finds or makes the graph for it; ``signature.py`` and ``watch.py`` say what a graph depends on, the arguments and the
module; ``recording.py`` records (by ``capture.py``) and replays; ``report.py`` shows what there is.
"""

from torchtitan_npu.sinking.block import enable_graph
from torchtitan_npu.sinking.cache import clear_graphs
from torchtitan_npu.sinking.reasons import CannotSink, GraphSinkingWarning
from torchtitan_npu.sinking.report import GraphEntry, GraphReport, graph_report

__all__ = [
    "CannotSink",
    "GraphEntry",
    "GraphReport",
    "GraphSinkingWarning",
    "clear_graphs",
    "enable_graph",
    "graph_report",
]
