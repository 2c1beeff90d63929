// What the widgets of a page share. The kernel opens it before the first of them; it has no view.
const VIEW = 'application/vnd.jupyter.widget-view+json', STATE = 'application/vnd.jupyter.widget-state+json';
const LOST = 'Error displaying widget: model not found', SHARED = 'workbook.views.shared.Shared';
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

export default { initialize({ model }) { keepNames(model.widget_manager); keepWidgets(model.widget_manager); } };
