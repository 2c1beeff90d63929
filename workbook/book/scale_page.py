"""The page of the book on other machines: data/book/scale.md, with the table of machines computed into it."""

from __future__ import annotations

import html

from workbook.book.cells import markdown
from workbook.book.parts import scrolling
from workbook.places import data_path
from workbook.studies.gpu.campaign import gpu_table
from workbook.training.machines import machine_table, shared_settings

SOURCE = data_path("book", "scale.md")
TITLE = "What to change for your machine"
QUESTION = "Which fields of a config change from a laptop to a T4, a node or a cluster, and what is known about it?"


def scale_body() -> str:
    """What stands on the page, as HTML."""
    table = machine_table().set_index("machine").rename_axis(None).T.to_html(border=0)
    shared = ", ".join(f"<code>{key}: {html.escape(str(value))}</code>" for key, value in shared_settings().items())
    body = markdown(SOURCE.read_text(encoding="utf-8"))
    body = body.replace("<p>{machines}</p>", f"{scrolling('wide', 'Ready configs', table)}<p>Each with {shared}.</p>")
    measured = gpu_table().set_index("row").rename_axis(None).to_html(border=0)
    return body.replace("<p>{gpu}</p>", scrolling("wide", "Measured on GPUs", measured))
