const LEAST = 520;   // px of a chart that can still be read
async function vegaOf(model) {   // unpacked once a page, for all charts
  const shared = await model.widget_manager.get_model(model.get('shared').replace('IPY_MODEL_', ''));
  const unpack = async () => {
    const packed = new Blob([shared.get('vega')]).stream().pipeThrough(new DecompressionStream('gzip'));
    const source = new Blob([await new Response(packed).text()], { type: 'text/javascript' });
    return import(URL.createObjectURL(source)); };
  return shared.workbookVega ??= unpack();
}
const rowsOf = columns => { const names = Object.keys(columns);   // those of the page's own: Vega writes into them
  return columns[names[0]].map((_, i) => Object.fromEntries(names.map(name => [name, columns[name][i]]))); };
const tables = model => Object.fromEntries(Object.entries(model.get('data') || {}).map(([name, sent]) =>
  [name, Array.isArray(sent) ? structuredClone(sent) : rowsOf(sent)]));
async function render({ model, el }) {
  let view = null, shown = null, finalize = null, queue = Promise.resolve();
  const { vegaEmbed } = await vegaOf(model);
  const push = async () => { if (!view || shown !== model.get('spec')) return;   // another chart's rows wait for it
    const version = el.dataset.pushed = model.get('version');
    for (const [name, rows] of Object.entries(tables(model))) view.data(name, rows);
    await view.runAsync();
    for (const marks of el.querySelectorAll('g.role-mark'))   // those without a mark have no name to be read out
      marks.toggleAttribute('aria-hidden', false), marks.childElementCount || marks.setAttribute('aria-hidden', 'true');
    el.dataset.drawn = version; };
  const embed = async () => { if (finalize) finalize(); view = null; shown = model.get('spec');
    const spec = { autosize: { type: 'pad', resize: true }, ...shown, datasets: tables(model) };
    const quiet = { renderer: 'svg', actions: false, logLevel: 1 };  // no warning of each panel that is empty still
    const result = await vegaEmbed(el, structuredClone(spec), quiet);
    view = result.view; finalize = result.finalize; view.addEventListener('click', click); await push(); fit(); };
  const fit = () => { const svg = el.querySelector('svg.marks'); if (!svg) return;   // narrower it scrolls, also by key
    svg.style.minWidth = `${Math.min(LEAST, svg.width.baseVal.value)}px`;
    if (el.scrollWidth > el.clientWidth) el.tabIndex = 0; else el.removeAttribute('tabindex'); };
  const sized = new ResizeObserver(fit); sized.observe(el);
  const click = (_, item) => { if (item?.mark?.marktype === 'symbol' && item.datum)
    model.send({ clicked: JSON.parse(JSON.stringify(item.datum)) }); };
  const again = () => (queue = queue.then(embed));
  model.on('change:spec', again); model.on('change:version', push); await again();
  return () => { sized.disconnect(); if (finalize) finalize();
    model.off('change:spec', again); model.off('change:version', push); };
}
export default { render };
