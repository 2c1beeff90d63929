"""Snippet: a line or two of Python on the page, with a button that copies it."""

from __future__ import annotations

import anywidget
import traitlets

ESM = """
function render({ model, el }) {
  const [text, button, box] = ["pre", "button", "div"].map(tag => document.createElement(tag));
  box.className = 'workbook-code';
  button.className = 'jupyter-button';
  button.textContent = 'Copy as code';
  const copied = document.createElement('span'); copied.setAttribute('role', 'status');
  const show = () => { text.textContent = model.get('text'); };   // text, never markup
  button.onclick = async () => {
    const code = model.get('text');
    try { await navigator.clipboard.writeText(code); }
    catch { const area = document.createElement('textarea'); area.value = code; document.body.append(area);
      area.select(); document.execCommand('copy'); area.remove(); }
    copied.textContent = ' copied'; setTimeout(() => { copied.textContent = ''; }, 1500);
  };
  model.on('change:text', show); show();
  box.append(button, copied, text); el.append(box);
  return () => model.off('change:text', show);
}
export default { render };
"""
CSS = """
.workbook-code pre { margin: 4px 0 0; padding: 6px 8px; max-width: 860px; white-space: pre-wrap; font-size: 12px;
  background: var(--jp-layout-color2, #f2f2f2); color: var(--jp-ui-font-color1, #222); }
"""


class Snippet(anywidget.AnyWidget):
    """Shows `text` and copies it at a click."""

    _esm = ESM
    _css = CSS
    text = traitlets.Unicode().tag(sync=True)
