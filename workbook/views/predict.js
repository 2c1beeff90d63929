// A prediction: a number with a range, a choice with a confidence, or a curve. Drawn by hand or typed; recorded by a
// button alone, which for a choice is the option itself. The drawing is for pointers; its fields say and take the same, by keys.
const SVG = 'http://www.w3.org/2000/svg', EDGE = 14;
let count = 0;

function make(tag, about = {}, ...parts) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about))
    if (name === 'on') for (const [kind, answer] of Object.entries(value)) node.addEventListener(kind, answer);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? '' : value);
  node.append(...parts);
  return node;
}
function draw(svg, tag, about, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  svg.append(node);
}
const short = value => String(Number(Number(value).toPrecision(3))).replace('-', '−');
const isNumber = value => value !== '' && value != null && Number.isFinite(Number(value));

// a drawing that answers a pointer which presses, and moves while pressed, with its place in the drawing
function canvas(width, height, answer) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('aria-hidden', 'true');
  const place = event => { const box = svg.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * width, (event.clientY - box.top) / box.height * height]; };
  let pressed = false;
  svg.addEventListener('pointerdown', event => { pressed = true; svg.setPointerCapture(event.pointerId);
    answer(...place(event), true); event.preventDefault(); });
  svg.addEventListener('pointermove', event => { if (pressed) answer(...place(event), false); });
  for (const end of ['pointerup', 'pointercancel']) svg.addEventListener(end, () => { pressed = false; });
  return svg;
}

function field(label, value, limits, change) {
  const id = `workbook-predict-${count++}`;
  const input = make('input', { id, type: 'number', step: 'any', ...limits, on: { input: () => change(input.value) } });
  if (isNumber(value)) input.value = value;
  return [make('span', { class: 'wp-field' }, make('label', { for: id }, label), input), input];
}

const NAMES = { low: 'at least', guess: 'best guess', high: 'at most' };
function numberForm(about, draft, change) {
  const { low, high } = about, width = 360, height = 52, line = 24, fields = {};
  const x = value => EDGE + (value - low) / (high - low) * (width - 2 * EDGE);
  const value = at => Number(Math.min(high, Math.max(low, low + (at - EDGE) / (width - 2 * EDGE) * (high - low))).toPrecision(3));
  const all = () => Object.keys(NAMES).every(name => isNumber(draft[name]));
  let held = null;
  const set = changes => { for (const [name, one] of Object.entries(changes)) { draft[name] = one; fields[name].value = one; }
    paint(); change(); };
  const svg = canvas(width, height, (at, _, first) => {
    const one = value(at);
    if (!all()) { const tenth = (high - low) / 10; held = 'guess';
      return set({ guess: one, low: value(x(Math.max(low, one - tenth))), high: value(x(Math.min(high, one + tenth))) }); }
    if (first) held = Object.keys(NAMES).reduce((a, b) => Math.abs(x(draft[b]) - at) < Math.abs(x(draft[a]) - at) ? b : a);
    if (held === 'guess') set({ guess: one, low: Math.min(draft.low, one), high: Math.max(draft.high, one) });
    else if (held === 'low') set({ low: one, guess: Math.max(draft.guess, one), high: Math.max(draft.high, one) });
    else set({ high: one, guess: Math.min(draft.guess, one), low: Math.min(draft.low, one) }); });
  const paint = () => { svg.replaceChildren();
    draw(svg, 'line', { x1: EDGE, x2: width - EDGE, y1: line, y2: line, class: 'wp-axis' });
    for (const at of [low, (low + high) / 2, high]) {
      draw(svg, 'line', { x1: x(at), x2: x(at), y1: line - 4, y2: line + 4, class: 'wp-axis' });
      draw(svg, 'text', { x: x(at), y: height - 4, 'text-anchor': at === low ? 'start' : at === high ? 'end' : 'middle' }, short(at)); }
    if (!all()) return draw(svg, 'text', { x: width / 2, y: 12, 'text-anchor': 'middle', class: 'wp-hint' }, 'click where you expect it, or type below');
    draw(svg, 'rect', { x: x(draft.low), width: Math.max(1, x(draft.high) - x(draft.low)), y: line - 7, height: 14, class: 'wp-range' });
    for (const name of ['low', 'high']) draw(svg, 'line', { x1: x(draft[name]), x2: x(draft[name]), y1: line - 9, y2: line + 9, class: 'wp-end' });
    draw(svg, 'circle', { cx: x(draft.guess), cy: line, r: 7, class: 'wp-dot' }); };
  const row = make('div', { class: 'wp-fields' }, make('span', { class: 'wp-sure' }, '80 % sure:'));
  for (const [name, label] of Object.entries(NAMES)) {
    const [box, input] = field(label, draft[name], { min: low, max: high }, text => {
      draft[name] = isNumber(text) ? Number(text) : null; paint(); change(); });
    fields[name] = input; row.append(box); }
  paint();
  return [svg, row];
}

function curveForm(about, draft, change) {
  const { x: xs, y: [low, high] } = about, width = 420, height = 190, left = 44, bottom = 34, fields = [];
  draft.y = xs.map((_, k) => draft.y?.[k] ?? null);
  const px = k => left + 14 + k * (width - left - 28) / (xs.length - 1);
  const py = value => 10 + (high - value) / (high - low) * (height - bottom - 10);
  const svg = canvas(width, height, (at, up) => {
    const k = xs.map((_, j) => Math.abs(px(j) - at)).reduce((best, away, j, all) => away < all[best] ? j : best, 0);
    const value = high - (up - 10) / (height - bottom - 10) * (high - low);
    draft.y[k] = Number(Math.min(high, Math.max(low, value)).toPrecision(3));
    fields[k].value = draft.y[k]; paint(); change(); });
  const paint = () => { svg.replaceChildren();
    for (const at of [low, (low + high) / 2, high]) {
      draw(svg, 'line', { x1: left, x2: width - 4, y1: py(at), y2: py(at), class: 'wp-grid' });
      draw(svg, 'text', { x: left - 5, y: py(at) + 4, 'text-anchor': 'end' }, short(at)); }
    xs.forEach((one, k) => draw(svg, 'text', { x: px(k), y: height - bottom + 15, 'text-anchor': 'middle' }, short(one)));
    draw(svg, 'text', { x: (left + width) / 2, y: height - 4, 'text-anchor': 'middle' }, about.x_title);
    const set = draft.y.map((value, k) => [k, value]).filter(([, value]) => isNumber(value));
    if (!set.length) draw(svg, 'text', { x: (left + width) / 2, y: py((low + high) / 2) - 8, 'text-anchor': 'middle', class: 'wp-hint' },
      'press and draw, or type below');
    draw(svg, 'polyline', { points: set.map(([k, value]) => `${px(k)},${py(value)}`).join(' '), class: 'wp-line' });
    for (const [k, value] of set) draw(svg, 'circle', { cx: px(k), cy: py(value), r: 6, class: 'wp-dot' }); };
  const row = make('div', { class: 'wp-fields' }, make('span', { class: 'wp-sure' }, `${about.y_title} at ${about.x_title}`));
  xs.forEach((one, k) => { const [box, input] = field(short(one), draft.y[k], { min: low, max: high }, text => {
      draft.y[k] = isNumber(text) ? Number(text) : null; paint(); change(); });
    fields.push(input); row.append(box); });
  paint();
  return [svg, row];
}

const SURE = 0.75;  // until the reader says otherwise
function choiceForm(about, draft, change, record) {
  const least = Math.ceil(100 / about.options.length), id = `workbook-predict-${count++}`;
  draft.sure ??= Math.max(SURE, least / 100);
  const shown = make('output', { for: id }, `${Math.round(100 * draft.sure)} %`);
  const slider = make('input', { type: 'range', id, min: least, max: 100, step: 1, value: Math.round(100 * draft.sure),
    on: { input: () => { draft.sure = Math.max(Number(slider.value) / 100, 1 / about.options.length);
      shown.textContent = `${slider.value} %`; change(); } } });
  const options = about.options.map(option => make('button', { type: 'button', class: 'wp-button',
    on: { click: () => { draft.option = option; change(); record(); } } }, ...inline(option)));
  return [make('div', { class: 'wp-fields' }, ...options),
    make('div', { class: 'wp-fields' }, make('label', { for: id }, 'how sure'), slider, shown)];
}

const FORMS = { number: numberForm, choice: choiceForm, curve: curveForm };
// a text whose `code` and **bold** parts are elements
const inline = text => text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map(part => part.startsWith('`') && part.length > 1 ? make('code', {}, part.slice(1, -1))
  : part.startsWith('**') && part.length > 3 ? make('strong', {}, part.slice(2, -2)) : part);

function render({ model, el }) {
  return model.get('about') ? renderForm(model, el) : renderAnswer(model, el);
}

// an answer behind a button, until it is asked for or a prediction is recorded
function renderAnswer(model, el) {
  const show = () => { model.set('shown', true); model.save_changes(); };
  const button = make('button', { type: 'button', class: 'wp-button', on: { click: show } }, 'Show the answer');
  const text = make('p', { role: 'status' });
  const draw = () => model.get('shown') ? el.replaceChildren(text) : el.replaceChildren(button);
  const say = () => { text.replaceChildren(...inline(model.get('text'))); draw(); };
  say();
  for (const name of ['shown', 'text']) model.on(`change:${name}`, say);
  return () => { for (const name of ['shown', 'text']) model.off(`change:${name}`, say); };
}

function renderForm(model, el) {
  const status = make('p', { role: 'status', class: 'wp-status' }), body = make('div');
  const say = () => { status.replaceChildren(...inline([model.get('recorded'), model.get('message')].filter(Boolean).join(' '))); };
  const record = () => model.send({ kind: 'record', guess: model.get('draft') ?? {} });
  const form = () => {
    if (model.get('recorded')) return body.replaceChildren();
    const draft = structuredClone(model.get('draft') ?? {}), { kind } = model.get('about');
    const change = () => { model.set('draft', structuredClone(draft)); model.save_changes(); };
    const button = make('button', { type: 'button', class: 'wp-button', on: { click: record } }, 'Record my prediction');
    body.replaceChildren(...FORMS[kind](model.get('about'), draft, change, record), ...(kind === 'choice' ? [] : [button])); };
  el.append(make('div', { role: 'group', 'aria-label': `Prediction: ${model.get('question')}` },
    make('p', { class: 'wp-question' }, make('strong', {}, 'Predict. '), ...inline(model.get('question'))), body, status));
  form(); say();
  model.on('change:recorded', form);
  for (const name of ['recorded', 'message']) model.on(`change:${name}`, say);
  return () => { model.off('change:recorded', form); for (const name of ['recorded', 'message']) model.off(`change:${name}`, say); };
}
export default { render };
