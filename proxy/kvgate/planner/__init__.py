"""`kvgate plan`: how many sequences fit, why, and what would make it more. A tool beside the line.

The arithmetic is in `kvgate_policies.capacity` and its neighbours, which know nothing of files, servers and
words. Here a question is put together (`question`, from files and a running server), answered once (`answer`),
and the answer shown as text, JSON or a plot.
"""

from __future__ import annotations

from kvgate.planner.answer import Answer, answer_json, make_answer
from kvgate.planner.backend import Reported, ask_backend
from kvgate.planner.plot import plot_format, write_plot
from kvgate.planner.question import Question
from kvgate.planner.report import print_report

__all__ = [
    "Answer",
    "Question",
    "Reported",
    "answer_json",
    "ask_backend",
    "make_answer",
    "plot_format",
    "print_report",
    "write_plot",
]
