// What the widgets of a page share. The kernel opens it before the first of them; it has no view.
const VIEW = 'application/vnd.jupyter.widget-view+json', STATE = 'application/vnd.jupyter.widget-state+json';

// The state of the widgets that outputs show, and of those inside them; a cell run again leaves others behind.
function shownState(manager, cells) {
  const { state, ...version } = manager.get_state_sync({ drop_defaults: true });
  const reached = new Set(), ahead = [];
  for (const { type, outputs } of cells) if (type === 'code') for (let k = 0; k < outputs.length; k++)
    ahead.push(outputs.get(k).data[VIEW]?.model_id);
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
  context.saveState.connect((_, phase) => { if (phase === 'started')
    context.model.setMetadata('widgets', { [STATE]: shownState(manager, context.model.cells) }); });
}

export default { initialize({ model }) { keepNames(); keepWidgets(model.widget_manager); } };
