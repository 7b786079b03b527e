"""The runbook as a dashboard, so that a link to it works in every Grafana, whatever else can be reached at night.

It is RUNBOOK.md, one panel for each paragraph; alerts name the paragraphs of the file.
"""

from __future__ import annotations

import re
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

UID = "kvgate-runbook"
FILE = Path(__file__).parents[1] / "RUNBOOK.md"


def paragraphs() -> dict[str, str]:
    """Title → text, in the order of the file."""
    _, *parts = re.split(r"^## ", FILE.read_text(), flags=re.MULTILINE)
    return {title: body.strip() for title, _, body in (part.partition("\n") for part in parts)}


def anchor(title: str) -> str:
    """What a title is called in a link to the file."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def panel_id(title: str) -> int:
    """The panel of a paragraph. Raises ValueError for a title that the runbook does not have."""
    titles = list(paragraphs())
    if title not in titles:
        raise ValueError(f"the runbook has no paragraph {title!r}")
    return titles.index(title) + 1


def link_of(title: str) -> DashboardLink:
    """A link from a panel to the paragraph."""
    link = DashboardLink(f"Runbook: {title}").type(DashboardLinkType.LINK)
    return link.url(f"/d/{UID}?viewPanel={panel_id(title)}").target_blank(target_blank=True)
