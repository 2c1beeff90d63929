// The module of this widget's kind lies in what the page's widgets share, once for all of the kind; imported once a page.
async function opened(packed) {
  const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  const sources = JSON.parse(await new Response(text).text()), modules = {};
  return name => modules[name] ??= import(URL.createObjectURL(new Blob([sources[name]], { type: 'text/javascript' })));
}
async function render({ model, el }) {
  el.classList.add(`workbook-${model.get('kind')}`);   // its look, before its module is there
  const shared = await model.widget_manager.get_model(model.get('shared').replace('IPY_MODEL_', ''));
  const open = await (shared.workbookModules ??= opened(shared.get('modules')));
  return (await open(model.get('kind'))).default.render({ model, el });
}
export default { render };
