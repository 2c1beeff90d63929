"""Small pieces of the book's pages: boxes that scroll, pictures, a control with its label, text without tags."""

from __future__ import annotations

import html
import re

FORMULA = '<span class="formula" tabindex="0">{}</span>'  # it may be wider than a phone
BOX = '<div class="{kind}" tabindex="0" role="group" aria-label="{label}">{body}</div>'
IMAGE = '<img src="data:image/png;base64,{png}" alt="{alt}"{size}>'
CONTROL = '<div class="control" title="{hint}"><label for="{id}">{label}</label>{field}{readout}</div>'


def scrolling(kind: str, label: str, body: str) -> str:
    """A box that scrolls sideways, by keys as well."""
    return BOX.format(kind=kind, label=html.escape(label), body=body)


def picture(png: str, alt: str = "picture", width: int | None = None, height: int | None = None, **_) -> str:
    """A PNG in base64 in its box, which scrolls where the page is narrow."""
    size = f' width="{width}" height="{height}"' if width and height else ""
    return scrolling("picture", "Picture", IMAGE.format(png=re.sub(r"\s", "", png), alt=html.escape(alt), size=size))


def plain_text(page: str) -> str:
    """HTML without its tags, one space between words.

    >>> plain_text("<p>a &lt;b&gt;<br>c</p>")
    'a <b> c'
    """
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def anchor(text: str) -> str:
    """The id of a heading.

    >>> anchor("2 · Now <em>drag</em> it: so?")
    '2-now-drag-it-so'
    """
    return re.sub(r"\W+", "-", plain_text(text).lower()).strip("-")


def control(id: str, label: str, field: str, hint: str = "", readout: str | None = None) -> str:
    """A control with its label; field: its HTML, which has that id.  readout: the number that a slider shows."""
    shown = "" if readout is None else f'<output for="{id}">{html.escape(readout)}</output>'
    return CONTROL.format(id=id, label=html.escape(label), field=field, hint=html.escape(hint), readout=shown)


def attributes(**values) -> str:
    """Attributes of an element; True stands alone, None and False are left out.

    >>> attributes(min=0, disabled=True, title="a < b", max=None)
    ' min="0" disabled title="a &lt; b"'
    """
    parts = []
    for name, value in values.items():
        if value is True:
            parts.append(f" {name}")
        elif value is not None and value is not False:
            parts.append(f' {name}="{html.escape(str(value))}"')
    return "".join(parts)
