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

// ipywidgets lets a reader type beside a slider over options, and forgets it: Enter only breaks the line. Here the option
// of that name is taken, else the nearest number; what is neither goes away again.
async function takeTyped(manager, readout) {
  for (const model of await Promise.all(Object.values(manager._models ?? {}))) {
    const labels = model.get('_options_labels') ?? [], views = await Promise.all(Object.values(model.views ?? {}));
    const view = views.find(one => one.readout === readout && one.updateSelection);
    if (!view || !labels.length) continue;
    const typed = readout.textContent.trim(), far = labels.map(label => Math.abs(Number(label) - Number(typed)));
    const nearest = typed ? far.indexOf(Math.min(...far.filter(Number.isFinite))) : -1;
    const index = labels.includes(typed) ? labels.indexOf(typed) : nearest;
    if (index >= 0 && index !== model.get('index')) { model.set('index', index); model.save_changes(); }
    view.updateSelection();
  }
}
function keepTyped(manager) {
  if (manager.keepsTyped) return;
  manager.keepsTyped = true;
  const take = event => { const readout = event.target.closest?.('.widget-readout[contenteditable="true"]');
    if (!readout || (event.key ?? 'Enter') !== 'Enter') return;
    event.preventDefault(); takeTyped(manager, readout); };
  for (const kind of ['keydown', 'focusout']) document.addEventListener(kind, take);
}

// What the widgets of a page share. The kernel opens it before the first of them; it has no view.
const VIEW = 'application/vnd.jupyter.widget-view+json', STATE = 'application/vnd.jupyter.widget-state+json';
const LOST = 'Error displaying widget: model not found', SHARED = 'workbook.views.live.Shared';
const LOOKS = 2000;   // ms for which JupyterLab looks for a widget

function* widgetOutputs(cells) {
  for (const { type, outputs } of cells) for (let k = 0; type === 'code' && k < outputs.length; k++) {
    const id = outputs.get(k).data[VIEW]?.model_id;
    if (id) yield { id, again: () => outputs.set(k, outputs.get(k).toJSON()) }; }
}

// The state of the widgets that outputs show, and of those inside them; a cell run again leaves others behind. What they
// share is there once, though kernels that came and went opened one each.
function shownState(manager, cells, before) {
  const { state: known, ...version } = manager.get_state_sync({ drop_defaults: true });
  const state = { ...structuredClone(before), ...known };   // what the file brought stays while an output shows it
  const common = Object.keys(state).filter(id => state[id].state._anywidget_id === SHARED).at(-1);
  for (const { state: one } of Object.values(state)) if (one.shared) one.shared = `IPY_MODEL_${common}`;
  const reached = new Set(), ahead = [common, ...[...widgetOutputs(cells)].map(({ id }) => id)];
  while (ahead.length) { const id = ahead.pop();
    if (!(id in state) || reached.has(id)) continue;
    reached.add(id);
    for (const [, inner] of JSON.stringify(state[id].state).matchAll(/(?:IPY_MODEL_|"model_id":")([\w-]+)/g)) ahead.push(inner); }
  return { state: Object.fromEntries([...reached].map(id => [id, state[id]])), ...version };
}

// JupyterLab prefers a widget to the picture beside it, and shows neither where no kernel knows the widget: so the
// widgets are saved with the notebook, whatever its settings say. Elsewhere (Colab, VS Code) there is no such context.
function keepWidgets(manager) {
  const { context } = manager;
  if (manager.keepsWidgets || !context?.saveState?.connect || !context.model?.setMetadata) return;
  manager.keepsWidgets = true;
  const keep = () => context.model.setMetadata('widgets', { [STATE]:
    shownState(manager, context.model.cells, context.model.getMetadata('widgets')?.[STATE]?.state ?? {}) });
  context.saveState.connect((_, phase) => { if (phase === 'started') keep(); });
  context.sessionContext.statusChanged.connect((_, status) => { if (status === 'restarting') keep(); });   // they die now
  // A kernel that is slow to connect makes JupyterLab look for widgets before it has read those of the notebook, and
  // its look ends up to a tenth of a second after its last sight: so what is lost is shown again now and after that.
  const isLost = node => !node.childElementCount && node.textContent === LOST;
  const showLost = () => { if ([...document.querySelectorAll('.jupyter-widgets')].some(isLost))
    for (const { id, again } of widgetOutputs(context.model.cells)) if (manager.has_model(id)) again(); };
  for (const wait of [0, 500, LOOKS + 500, 2 * LOOKS]) setTimeout(showLost, wait);
}

export default { initialize({ model }) { keepNames(model.widget_manager); keepTyped(model.widget_manager); keepWidgets(model.widget_manager); } };
