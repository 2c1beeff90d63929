"""The page of the book on other machines: data/book/scale.md, with the table of machines computed into it."""

from __future__ import annotations

import html

from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from workbook.places import data_path
from workbook.studies.gpu.campaign import gpu_table
from workbook.training.machines import machine_table, shared_settings

SOURCE = data_path("book", "scale.md")
TITLE = "What to change for your machine"
QUESTION = "Which fields of a config change from a laptop to a T4, a node or a cluster, and what is known about it?"


def scale_page(links: str = "") -> str:
    """The page as HTML; links: a line of links for its top and bottom, as HTML."""
    table = machine_table().set_index("machine").rename_axis(None).T.to_html(border=0)
    shared = ", ".join(f"<code>{key}: {html.escape(str(value))}</code>" for key, value in shared_settings().items())
    body = MarkdownWithMath(renderer=IPythonRenderer(escape=False)).render(SOURCE.read_text(encoding="utf-8"))
    body = body.replace("<p>{machines}</p>", f'<div class="wide">{table}</div><p>Each with {shared}.</p>')
    measured = gpu_table().set_index("row").rename_axis(None).to_html(border=0)
    body = body.replace("<p>{gpu}</p>", f'<div class="wide">{measured}</div>')
    return PAGE.format(title=TITLE, links=links, body=body)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ margin: 0; font: 1rem/1.5 system-ui, sans-serif; color: #222 }}
main {{ max-width: 64rem; margin: 0 auto; padding: 0 1rem }} h2 {{ margin: 2.2rem 0 .2rem; font-size: 1.15rem }}
nav.book {{ display: flex; justify-content: space-between; gap: 1rem; max-width: 60rem; margin: 1rem auto;
  padding: 0 1rem; font: 0.95rem/1.4 system-ui, sans-serif }}
a {{ color: #1f5f96 }} a:focus-visible {{ outline: 2px solid #1f5f96; outline-offset: 2px }}
.wide {{ overflow-x: auto }} table {{ border-collapse: collapse; font-size: .85rem }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #e4e4e4 }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .5rem; font-size: .85rem }}
.anchor-link {{ display: none }}
</style></head><body>{links}
<main>{body}</main>{links}</body></html>
"""
