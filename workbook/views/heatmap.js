// The page's half of TokenHeatmap: draws only the cells in sight, so that tens of thousands of tokens scroll smoothly.
// Every text goes into the page by textContent: what a model wrote is shown, never parsed.

const ROW = 24, LABEL = 132, GAP = 1, CHARACTER = 7.2, PADDING = 18, TALLEST = 460;
const DIVERGING = ["#994a07", "#c5690d", "#e8932f", "#fbbf74", "#fce0ba", "#f2f0eb",
  "#d2e5ef", "#9dcae1", "#5da2cb", "#2f78b3", "#134b85"];  // Vega's blueorange: blue above zero
const SERIES = ["#2f78b3", "#b25a08", "#2f7a4b", "#8a5aa8", "#6b6b6b", "#8a6a00"];
const MISSING = "#ffffff", MEANINGS = { "▲": "clipped above", "▼": "clipped below", "■": "masked" };

const make = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
};
const floats = view => view && view.byteLength ? new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)) : new Float32Array();
const whole = view => view && view.byteLength ? new Int32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)) : new Int32Array();
const size = x => x !== 0 && (x < 1e-3 || x >= 1e6) ? x.toExponential(2) : Number(x.toPrecision(4)).toString();
const unsigned = x => x === null || Number.isNaN(x) ? "unknown" : (x < 0 ? "−" : "") + size(Math.abs(x));
const signed = x => (x > 0 ? "+" : "") + unsigned(x);

function mix(a, b, t) {
  const channel = i => Math.round(parseInt(a.slice(i, i + 2), 16) * (1 - t) + parseInt(b.slice(i, i + 2), 16) * t);
  return `rgb(${channel(1)},${channel(3)},${channel(5)})`;
}

function render({ model, el }) {
  const root = make("div", "token-heatmap"), bar = make("div", "th-bar"), grid = make("div", "th-grid");
  const canvas = make("div", "th-canvas"), labels = make("div", "th-labels"), tip = make("div", "th-tip"), details = make("div", "th-details");
  const prompt = make("div", "th-prompt"), status = make("div", "th-message"), menus = {}, pool = new Map();
  let reading = 0, explaining = 0, stale = false;
  let t = null, active = -1, hovered = -1, frame = 0;
  const id = `th${Math.random().toString(36).slice(2)}`;
  grid.tabIndex = 0;
  grid.setAttribute("role", "grid");
  tip.setAttribute("role", "tooltip");
  details.setAttribute("role", "status");
  status.setAttribute("role", "status");
  canvas.append(labels);
  grid.append(canvas);
  root.append(bar, status, prompt, grid, details, tip);
  el.append(root);

  // --- the table, as it came over the wire

  function read() {
    stale = false;
    const shape = model.get("shape"), columns = model.get("columns");
    const [kinds, rows, positions] = [0, 1, 2].map(k => whole(model.get("places")).subarray(k * shape.tokens, (k + 1) * shape.tokens));
    const values = floats(model.get("values"));
    const widths = new Float32Array(shape.positions).fill(2 * CHARACTER + PADDING);
    for (let i = 0; i < shape.tokens; i++) {
      const width = Math.min(shape.texts[kinds[i]].length, 14) * CHARACTER + PADDING;
      if (width > widths[positions[i]]) widths[positions[i]] = width;
    }
    const lefts = new Float32Array(shape.positions + 1);
    for (let p = 0; p < shape.positions; p++) lefts[p + 1] = lefts[p] + widths[p];
    const at = new Int32Array(shape.rows.length * shape.positions).fill(-1);
    for (let i = 0; i < shape.tokens; i++) at[rows[i] * shape.positions + positions[i]] = i;
    const stop = columns.find(c => c.marks);
    t = { ...shape, stop, kinds, rowOf: rows, positionOf: positions, values, lefts, at, columns };
    active = hovered = -1;
    for (const node of pool.values()) node.remove();
    pool.clear();
    canvas.style.width = `${LABEL + lefts[shape.positions]}px`;
    canvas.style.height = `${shape.rows.length * ROW}px`;
    grid.style.height = `${Math.min(shape.rows.length * ROW + 16, TALLEST)}px`;
    grid.setAttribute("aria-label", model.get("title"));
    grid.setAttribute("aria-rowcount", shape.rows.length);
    grid.setAttribute("aria-colcount", shape.positions);
    labels.replaceChildren(...shape.rows.map(text => make("div", "th-label", text)));
    prompt.textContent = model.get("prompt") ? `prompt: ${model.get("prompt")}` : "";
    build();
    explain();
  }

  const columnIndex = () => Math.max(0, t.columns.findIndex(c => c.name === model.get("column")));
  const valueOf = (i, c) => c.name === "coupling" ? coupling()[i] ?? NaN : t.values[c.slot * t.tokens + i];
  let couplingOf = null;
  const coupling = () => couplingOf ?? (couplingOf = floats(model.get("coupling")));
  const shown = (i, c) => c.levels ? c.levels[valueOf(i, c)] ?? "unknown" : c.center ? unsigned(valueOf(i, c)) : signed(valueOf(i, c));
  const markOf = i => t.stop ? t.stop.marks[valueOf(i, t.stop)] || "" : "";

  function passes(i) {
    const filter = model.get("filter");
    if (!filter || !filter.column) return true;
    const column = t.columns.find(c => c.name === filter.column);
    return !column || shown(i, column) === filter.value;
  }

  function paint(i, column) {
    const value = valueOf(i, column);
    if (Number.isNaN(value)) return [MISSING, "#222", ""];
    if (column.levels) return [SERIES[value % SERIES.length], "#fff", ""];
    const limit = column.name === "coupling" ? model.get("coupling_limit") : column.limit;
    const off = value - (column.center || 0), place = (Math.max(-1, Math.min(1, off / limit)) + 1) / 2 * (DIVERGING.length - 1);
    const low = Math.min(Math.floor(place), DIVERGING.length - 2);
    const ink = Math.abs(off) > 0.62 * limit ? "#fff" : "#111";
    return [mix(DIVERGING[low], DIVERGING[low + 1], place - low), ink, off > 0 ? "+" : off < 0 ? "−" : ""];
  }

  // --- drawing what is in sight

  function draw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      if (!t) return;
      const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 1);
      const last = Math.min(t.rows.length - 1, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW));
      const from = after(grid.scrollLeft) - 1, to = after(grid.scrollLeft + grid.clientWidth) + 1;
      const column = t.columns[columnIndex()], wanted = new Set();
      const pinned = model.get("pinned"), coupled = new Set((model.get("details").coupled || []).map(c => c.index));
      const lit = hovered >= 0 ? t.kinds[hovered] : pinned >= 0 ? t.kinds[pinned] : -1;
      for (let row = first; row <= last; row++)
        for (let p = Math.max(0, from); p < Math.min(t.positions, to); p++) {
          const i = t.at[row * t.positions + p];
          if (i < 0) continue;
          wanted.add(i);
          let cell = pool.get(i);
          if (!cell) pool.set(i, cell = place(i, row, p));
          const [fill, ink, sign] = paint(i, column);
          cell.style.backgroundColor = fill;
          cell.style.color = ink;
          cell.dataset.sign = sign;
          cell.dataset.mark = markOf(i);
          cell.className = "th-cell" + (markOf(i) ? " stopped" : "") + (t.kinds[i] === lit ? " same" : "") + (i === pinned ? " pinned" : "")
            + (coupled.has(i) ? " coupled" : "") + (i === active ? " active" : "") + (passes(i) ? "" : " out");
          cell.setAttribute("aria-selected", i === pinned);
          cell.setAttribute("aria-label", `${t.texts[t.kinds[i]]}, ${t.rows[row]}, position ${p}, ${column.name} ${shown(i, column)}${markOf(i) ? `, ${shown(i, t.stop)}` : ""}`);
        }
      for (const [i, cell] of pool) if (!wanted.has(i)) { cell.remove(); pool.delete(i); }
      root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
    });
  }

  function after(x) {  // first position whose left edge lies beyond x pixels of scrolling
    let low = 0, high = t.positions;
    while (low < high) { const middle = (low + high) >> 1; if (t.lefts[middle] <= x) low = middle + 1; else high = middle; }
    return low;
  }

  function place(i, row, p) {
    const cell = make("div", "th-cell", t.texts[t.kinds[i]]);
    cell.id = `${id}-${i}`;
    cell.dataset.token = i;
    cell.setAttribute("role", "gridcell");
    cell.style.left = `${LABEL + t.lefts[p]}px`;
    cell.style.top = `${row * ROW}px`;
    cell.style.width = `${t.lefts[p + 1] - t.lefts[p] - GAP}px`;
    canvas.append(cell);
    return cell;
  }

  // --- menus and legend

  function menu(name, label, options, value, change) {
    const box = make("label", "", `${label} `), select = make("select");
    for (const option of options) {
      const node = make("option", "", option);
      node.value = option;
      select.append(node);
    }
    select.value = value;
    select.onchange = () => change(select.value);
    menus[name] = select;
    box.append(select);
    bar.append(box);
  }

  function build() {
    const focused = Object.keys(menus).find(name => menus[name] === root.ownerDocument.activeElement);
    bar.replaceChildren();
    const groups = model.get("groups").map(String);
    if (groups.length > 1) menu("group", "group", groups, String(model.get("group")), value => set("group", Number(value)));
    menu("column", "colour by", t.columns.map(c => c.name), model.get("column"), value => set("column", value));
    const choices = ["all tokens"];
    for (const c of t.columns) if (c.levels) for (const level of c.levels) choices.push(`${c.name}: ${level}`);
    const filter = model.get("filter");
    if (choices.length > 1)
      menu("filter", "show", choices, filter.column ? `${filter.column}: ${filter.value}` : choices[0], value => {
        const cut = value.indexOf(": ");
        set("filter", cut < 0 ? {} : { column: value.slice(0, cut), value: value.slice(cut + 2) });
      });
    bar.append(make("span", "th-legend"));
    if (focused) menus[focused].focus();
    legend();
  }

  function legend() {
    const place = bar.querySelector(".th-legend"), column = t.columns[columnIndex()];
    place.replaceChildren();
    const marks = t.stop ? [...new Set(t.stop.marks.filter(m => m))] : [];
    if (marks.length) place.append(make("span", "", marks.map(m => `${m} ${MEANINGS[m] || ""}`).join("  ")));
    if (column.levels) {
      column.levels.forEach((level, k) => {
        const chip = make("span", "th-chip", level);
        chip.style.background = SERIES[k % SERIES.length];
        place.append(chip);
      });
      return;
    }
    const limit = column.name === "coupling" ? model.get("coupling_limit") : column.limit;
    const scale = make("span", "th-scale");
    scale.style.background = `linear-gradient(90deg, ${DIVERGING.join(", ")})`;
    const [low, high] = [-limit, limit].map(x => column.center ? unsigned(column.center + x) : signed(x));
    place.append(make("span", "", low), scale, make("span", "", high));
  }

  function set(name, value) { model.set(name, value); model.save_changes(); }

  // --- hands: hover, click, keys

  const under = event => { const cell = event.target.closest(".th-cell"); return cell ? Number(cell.dataset.token) : -1; };

  function hover(i, x, y) {
    if (i !== hovered) { hovered = i; draw(); }
    tip.classList.toggle("visible", i >= 0);
    if (i < 0) return;
    const rows = [["token", t.texts[t.kinds[i]]], ["rollout", t.rows[t.rowOf[i]]], ["position", String(t.positionOf[i])]];
    for (const c of t.columns) if (c.name !== "coupling" || coupling().length) rows.push([c.name, shown(i, c)]);
    const list = make("table");
    for (const [name, text] of rows) {
      const row = make("tr");
      row.append(make("th", "", name), make("td", "", text));
      list.append(row);
    }
    tip.replaceChildren(list);
    const frame = root.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(x - frame.left + 14, frame.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y - frame.top + 18}px`;
  }

  function pin(i) { set("pinned", model.get("pinned") === i ? -1 : i); }

  function moveTo(i) {
    active = i;
    const left = LABEL + t.lefts[t.positionOf[i]], width = t.lefts[t.positionOf[i] + 1] - t.lefts[t.positionOf[i]];
    if (left < grid.scrollLeft + LABEL) grid.scrollLeft = left - LABEL;
    if (left + width > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = left + width - grid.clientWidth;
    const top = t.rowOf[i] * ROW;
    if (top < grid.scrollTop) grid.scrollTop = top;
    if (top + ROW > grid.scrollTop + grid.clientHeight - 16) grid.scrollTop = top + ROW + 16 - grid.clientHeight;
    grid.setAttribute("aria-activedescendant", `${id}-${i}`);
    draw();
  }

  function neighbour(i, down, right) {
    let row = t.rowOf[i] + down, p = t.positionOf[i] + right;
    for (; row >= 0 && row < t.rows.length && p >= 0 && p < t.positions; row += down, p += right)
      if (t.at[row * t.positions + p] >= 0) return t.at[row * t.positions + p];
    return i;
  }

  grid.onscroll = draw;
  grid.onmousemove = event => hover(under(event), event.clientX, event.clientY);
  grid.onmouseleave = () => hover(-1);
  grid.onclick = event => { const i = under(event); if (i >= 0) { active = i; pin(i); } };
  grid.onkeydown = event => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in steps) moveTo(active < 0 ? t.at.find(i => i >= 0) : neighbour(active, ...steps[event.key]));
    else if ((event.key === "Enter" || event.key === " ") && active >= 0) pin(active);
    else return;
    event.preventDefault();
    event.stopPropagation();  // the notebook has keys of its own
  };
  root.onkeydown = event => {  // of the cells, the panel and the menus alike
    if (event.key !== "Escape") return;
    hover(-1);
    if (details.contains(root.ownerDocument.activeElement)) grid.focus();
    if (model.get("pinned") >= 0) set("pinned", -1);
    event.preventDefault();
    event.stopPropagation();
  };

  // --- what is known about the pinned token

  function explain() {
    if (stale) return;  // read() does it, once it knows the new tokens
    couplingOf = null;
    const known = model.get("details"), unfolded = Boolean(details.querySelector("details[open]"));
    details.replaceChildren();
    if (known.lines) {
      const [about, ...coupled] = known.lines, life = model.get("biography");
      details.append(make("p", "", about));
      if ((known.loss || []).length) {
        const loss = make("div", "th-loss");
        for (const line of known.loss) loss.append(make("p", "", line));
        details.append(loss);
      }
      if (life.step && life.step.length) details.append(drawBiography(life, model.get("step"), unsigned, step => set("step", step)));
      if (unfolded) details.querySelector("details")?.setAttribute("open", "");
      for (const line of coupled) details.append(make("p", "", line));
      const list = make("table"), head = make("tr");
      for (const name of ["token", "rollout", "position", ...(known.headings || [])]) head.append(make("th", "", name));
      if ((known.coupled || []).length) list.append(head);
      for (const { index, numbers } of known.coupled || []) {
        const row = make("tr"), go = make("button", "th-go", t.texts[t.kinds[index]]), name = make("td");
        go.onclick = () => { moveTo(index); grid.focus(); };
        name.append(go);
        row.append(name, make("td", "", t.rows[t.rowOf[index]]), make("td", "", String(t.positionOf[index])));
        for (const number of numbers) row.append(make("td", "number", signed(number ?? NaN)));
        list.append(row);
      }
      details.append(list);
    }
    legend();
    draw();
  }

  const repaint = () => { for (const name of ["column"]) if (menus[name]) menus[name].value = model.get(name); legend(); draw(); };
  const control = stepControl(model, set), report = () => { status.textContent = model.get("message"); };
  const refresh = () => { stale = true; cancelAnimationFrame(reading); reading = requestAnimationFrame(read); };
  const explainSoon = () => { cancelAnimationFrame(explaining); explaining = requestAnimationFrame(explain); };
  const parts = [["places", refresh], ["values", refresh], ["columns", refresh], ["details", explainSoon], ["biography", explainSoon],
    ["step", control.place], ["steps", control.place], ["follow", control.place], ["message", report], ["looked", control.answered]];
  for (const [name, react] of parts) model.on(`change:${name}`, react);
  model.on("change:column", repaint);
  model.on("change:filter", repaint);
  model.on("change:pinned", draw);
  const resized = new ResizeObserver(draw);
  resized.observe(grid);
  root.prepend(control.bar);
  read();
  report();
  return () => {
    resized.disconnect();
    cancelAnimationFrame(frame);
    cancelAnimationFrame(reading);
    cancelAnimationFrame(explaining);
    control.close();
    for (const [name, react] of parts) model.off(`change:${name}`, react);
    model.off("change:column", repaint);
    model.off("change:filter", repaint);
    model.off("change:pinned", draw);
  };
}
export default { render };
