// Names for those who hear a page: ipywidgets leaves the handles of sliders without one, Vega its menu.
function nameParts() {
  for (const handle of document.querySelectorAll('.noUi-handle:not([aria-label])')) {
    const label = handle.closest('.widget-inline-hbox')?.querySelector('.widget-label')?.textContent.trim();
    if (label) handle.setAttribute('aria-label', label);
  }
  for (const output of document.querySelectorAll('.jp-OutputArea-output:not([tabindex])'))
    if (output.scrollWidth > output.clientWidth) output.tabIndex = 0;   // what scrolls is reached by keys
  for (const term of document.querySelectorAll('.jp-RenderedMarkdown abbr[title]:not([tabindex])')) term.tabIndex = 0;
  for (const label of document.querySelectorAll('.widget-label[title="null"]')) label.removeAttribute('title');
  for (const menu of document.querySelectorAll('.vega-embed summary:not([aria-label])'))
    menu.setAttribute('aria-label', 'Save or open this chart');
}

// Vega calls a mark without any rows a symbol, and gives it no name.
const NOTHING = 'nothing drawn', EMPTY = 'svg.marks g[role="graphics-symbol"]:empty';
function nameEmpty() {
  for (const mark of document.querySelectorAll(`${EMPTY}:not([aria-label])`)) mark.setAttribute('aria-label', NOTHING);
  for (const mark of document.querySelectorAll(`svg.marks g[aria-label="${NOTHING}"]:not(:empty)`)) mark.removeAttribute('aria-label');
}

// ipywidgets shows the tooltip of a slider, but none of a menu, a field or a switch that has a label.
async function showHints(manager) {
  for (const model of await Promise.all(Object.values(manager._models ?? {}))) {
    const hint = model.get('tooltip');
    if (hint) for (const view of await Promise.all(Object.values(model.views ?? {})))
      for (const part of [view.listbox, view.textbox, view.checkbox, view.label]) if (part && part.title !== hint) part.title = hint;
  }
}

// Parts come and go with the notebook's cells: looked at a moment after, all at once.
function keepNames(manager) {
  if (manager.keepsNames) return;
  manager.keepsNames = true;
  let waiting = false;
  const look = () => { waiting = false; nameParts(); nameEmpty(); showHints(manager); };
  const names = new MutationObserver(() => { if (!waiting) { waiting = true; setTimeout(look, 100); } });
  names.observe(document.body, { childList: true, subtree: true });
  look();
}
