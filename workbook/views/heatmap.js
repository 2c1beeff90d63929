// The page's half of TokenHeatmap: one pane of cells, or two to compare, their menus, the row of the token under the
// pointer, and what is known of the pinned one. What a model wrote is shown by textContent, never parsed.
let PALETTE;  // the widget's, or that of the page
const MEANINGS = { "▲": "clipped above", "▼": "clipped below", "■": "masked" }, UP = "#2f78b3", DOWN = "#c5690d", LABEL = 132, LETTER = 7.2;
const HINT = "Point at a token, or walk with the arrow keys: its row stands here. Enter or a click pins it, m switches between text and aligned cells.";

const make = (tag, className = "", text = "", about = {}) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== "") node.textContent = text;
  for (const [name, value] of Object.entries(about)) if (name in node && name !== "list") node[name] = value; else node.setAttribute(name, value);
  return node;
};
const bytes = view => view && view.byteLength ? view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) : new ArrayBuffer(0);
const size = x => x !== 0 && (x < 1e-3 || x >= 1e6) ? x.toExponential(2) : Number(x.toPrecision(4)).toString();
const unsigned = x => Number.isNaN(x) ? "unknown" : (x < 0 ? "−" : "") + size(Math.abs(x));
const text = (c, value) => c.levels ? c.levels[value] ?? "unknown" : c.center || c.side ? unsigned(value) : (value > 0 ? "+" : "") + unsigned(value);

// a group's tokens as they came over the wire; token i is the i-th row of the group's table
function decode({ shape, columns: about, values, places, asked }) {
  const all = new Int32Array(bytes(places)), n = shape.tokens, numbers = new Float32Array(bytes(values));
  const [kinds, rowOf, positionOf] = [0, 1, 2].map(k => all.subarray(k * n, (k + 1) * n)), answers = shape.rows.map(() => []);
  for (let i = 0; i < n; i++) answers[rowOf[i]].push(i);
  for (const answer of answers) answer.sort((a, b) => positionOf[a] - positionOf[b]);
  // copies: what stood in the widget's state would be saved with it, all numbers again for each column
  const columns = about.map((c, k) => ({ ...c, values: c.moves ? new Float32Array() : numbers.subarray(k * n, (k + 1) * n) }));
  const widths = new Float32Array(shape.positions).fill(2 * LETTER + 16);
  for (let i = 0; i < n; i++) widths[positionOf[i]] = Math.max(widths[positionOf[i]], shape.texts[kinds[i]].length * LETTER + 16);
  return { ...shape, asked, columns, kinds, rowOf, positionOf, answers, widths, wide: widths.reduce((sum, one) => sum + one, LABEL),
    stop: columns.find(c => c.marks), name: i => shape.texts[kinds[i]] || "(empty)", word: i => shape.raw[kinds[i]] };
}

// fill, ink and sign of a value; no fill where it is unknown
function colours(value, column, scale) {
  if (Number.isNaN(value) || value === undefined) return ["", "", ""];
  const { fills, inks } = PALETTE[column.levels ? "categories" : scale.side ? "sequential" : "diverging"];
  if (column.levels) return [fills[value % fills.length], inks[value % fills.length], ""];
  const off = value - scale.center, place = scale.side ? off / scale.limit * scale.side : (off / scale.limit + 1) / 2;
  const shade = Math.floor(Math.max(0, Math.min(1, place)) * (fills.length - 1) + 0.5);
  return [fills[shade], inks[shade], scale.side ? "" : off > 0 ? "⁺" : off < 0 ? "⁻" : ""];
}

// a bar with its ends, ≤ and ≥ where values lie beyond them, or a chip for each level
function drawLegend(place, column, scale) {
  if (column.levels) return column.levels.forEach((level, k) => {
    const [fill, ink] = colours(k, column);
    place.append(make("span", "th-chip", level, { style: `background: ${fill}; color: ${ink}` })); });
  const { fills } = PALETTE[scale.side ? "sequential" : "diverging"], shades = scale.side < 0 ? [...fills].reverse() : fills;
  const [low, high] = scale.side ? [Math.min(0, scale.side * scale.limit), Math.max(0, scale.side * scale.limit)] : [scale.center - scale.limit, scale.center + scale.limit];
  place.append(make("span", "", (column.values.some(x => x < low) ? "≤ " : "") + text(scale, low)),
    make("span", "th-scale", "", { style: `background: linear-gradient(90deg, ${shades.join(", ")})` }),
    make("span", "", (column.values.some(x => x > high) ? "≥ " : "") + text(scale, high)), make("span", "th-meaning", column.meaning));
}

// table: {title, headings, rows: [{cells: texts or {value: -1 to 1, a bar}, index: of the token to go to, -1: none}]}
function panelTable({ title, headings, rows }, go) {
  const box = make("div", "th-region", "", { tabIndex: 0, role: "region", "aria-label": title }), list = make("table"), head = make("tr");
  head.append(...headings.map(name => make("th", "", name)));
  list.append(make("caption", "", title), head);
  for (const { cells, index } of rows) {
    const row = make("tr");
    row.append(...cells.map((cell, k) => {
      if (typeof cell !== "object" && (k || index < 0)) return make("td", k && /^[-+−]?[\d.,]+(e[-+−]?\d+)?( %)?$/.test(cell) ? "number" : "", cell);
      const place = make("td");
      if (typeof cell !== "object") place.append(make("button", "th-go", cell, { title: "Go to this token", onclick: () => go(index) }));
      else {
        const bar = make("span", "th-signbar", "", { "aria-hidden": "true" }), half = 50 * Math.min(1, Math.abs(cell.value ?? 0));  // its number stands beside it
        bar.append(make("span", "", "", { style: `left: ${cell.value < 0 ? 50 - half : 50}%; width: ${half}%; background: ${cell.value < 0 ? DOWN : UP}` }));
        place.append(bar);
      }
      return place; }));
    list.append(row);
  }
  box.append(list);
  return box;
}

function render({ model, el }) {
  PALETTE = model.get("palette") ?? PALETTE;
  const root = make("div", "token-heatmap", "", { "data-lm-suppress-shortcuts": "true" });  // the notebook has keys of its own
  const [caption, bar, walk, panes, tip, working, details, prompt, status] = ["title", "bar", "bar", "panes", "tip", "busy", "details", "prompt", "message"].map(name => make("div", `th-${name}`));
  for (const part of [details, status]) part.setAttribute("role", "status");
  Object.assign(tip, { role: "group", ariaLabel: "the token under the pointer" });
  root.append(caption, walk, bar, status, prompt, panes, tip, working, details);
  el.append(root);
  const set = (name, value) => { model.set(name, value); model.save_changes(); };
  const mode = () => model.get("mode") !== "auto" ? model.get("mode") : root.clientWidth && main.t.wide > root.clientWidth ? "read" : "align";
  const main = makePane("a"), beside = makePane("b");
  let spot = null, frame = 0;

  // --- one pane of cells: grid > row > rowheader and gridcells

  function makePane(name) {
    const box = make("div", "th-pane"), heading = make("div", "th-heading"), grid = make("div", "th-grid", "", { tabIndex: 0, role: "grid" });
    const pane = { box, heading, grid, cells: [], t: null, active: -1, id: `th${Math.random().toString(36).slice(2)}${name}` };
    const under = event => { const cell = event.target.closest(".th-cell"); return cell ? Number(cell.dataset.token) : -1; };
    box.append(heading, grid);
    grid.onmousemove = event => point(pane, under(event));
    grid.onmouseleave = () => point(pane, -1);
    grid.onclick = event => { const i = under(event); if (i >= 0) { pane.active = i; pin(pane, i); } };
    grid.onscroll = () => { const other = pane === main ? beside : main;
      if (beside.t === main.t) Object.assign(other.grid, { scrollLeft: grid.scrollLeft, scrollTop: grid.scrollTop }); };
    grid.onkeydown = event => {
      const i = pane.active, to = i < 0 ? 0 : keyTo(pane.t, i, event);
      if (event.key.startsWith("Arrow") || ["Home", "End"].includes(event.key)) moveTo(pane, to);
      else if (["Enter", " "].includes(event.key) && i >= 0) pin(pane, i);
      else return;
      event.preventDefault();
      event.stopPropagation(); };
    return pane;
  }

  function keyTo(t, i, { key, ctrlKey }) {
    const answer = t.answers[t.rowOf[i]], at = answer.indexOf(i), last = t.answers.at(-1);
    if (key === "Home") return ctrlKey ? t.answers[0][0] : answer[0];
    if (key === "End") return ctrlKey ? last.at(-1) : answer.at(-1);
    if (key === "ArrowLeft" || key === "ArrowRight") return answer[at + (key === "ArrowLeft" ? -1 : 1)] ?? i;
    const near = t.answers[t.rowOf[i] + (key === "ArrowUp" ? -1 : 1)] ?? [i];  // the same position of the next answer, or its last
    return near.findLast(k => t.positionOf[k] <= t.positionOf[i]) ?? near[0];
  }

  function moveTo(pane, i) {
    pane.active = i;
    pane.cells[i].scrollIntoView({ block: "nearest", inline: "nearest" });
    pane.grid.setAttribute("aria-activedescendant", pane.cells[i].id);
    pane.grid.focus({ preventScroll: true });
    point(pane, i);
  }

  function layOut(pane, title) {  // another group, another mode
    const { t } = pane, reading = mode() === "read";
    pane.cells = [];
    pane.active = -1;
    for (const [name, value] of [["aria-label", title], ["aria-rowcount", t.rows.length], ["aria-colcount", t.positions]]) pane.grid.setAttribute(name, value);
    pane.grid.removeAttribute("aria-activedescendant");
    pane.box.classList.toggle("read", reading);
    pane.grid.replaceChildren(...t.answers.map((answer, row) => {
      const line = make("div", "th-row", "", { role: "row", "aria-rowindex": row + 1 }), body = make("div", "th-answer", "", { role: "presentation" });
      let at = 0;
      for (const i of answer) {
        const cell = pane.cells[i] = make("span", "th-cell", reading ? "" : t.texts[t.kinds[i]], { id: `${pane.id}-${i}`, role: "gridcell", "aria-colindex": t.positionOf[i] + 1, "data-token": i });
        if (reading) {
          if (t.words && i !== answer[0]) body.append(" ");
          for (const part of t.word(i).split(/([\n\t]|\s)/)) if (part) cell.append(/^\s$/.test(part) ? make("span", { "\n": "th-newline", "\t": "th-tab" }[part] || "th-space", part) : part);
        } else {
          let left = 0;
          for (; at < t.positionOf[i]; at++) left += t.widths[at];  // positions that this answer lacks
          cell.style.width = `${t.widths[at++] - 1}px`;
          cell.style.marginLeft = `${left}px`;
        }
        body.append(cell);
      }
      line.append(make("div", "th-label", t.rows[row], { role: "rowheader" }), body);
      return line; }));
  }

  // --- how tokens look

  const column = () => model.get("compare").startsWith("column ") ? model.get("compare").slice(7) : "";  // that stands beside
  const columnOf = pane => { const name = pane === beside && column() || model.get("column"); return pane.t.columns.find(c => c.name === name); };
  const words = name => main.t.columns.find(c => c.name === name)?.words ?? name;
  const drawn = () => beside.t ? [main, beside] : [main];
  const isShared = (a, b) => a && b && !a.levels && !b.levels && a.unit === b.unit && a.center === b.center && a.side === b.side;
  function scaleOf(pane) {  // the wider of two of one unit
    const [mine, theirs] = [pane, pane === main ? beside : main].map(one => one.t && columnOf(one));
    return isShared(mine, theirs) && theirs.limit > mine.limit ? theirs : mine;
  }

  function paint() {
    const pinned = model.get("pinned"), lit = spot ? spot.pane.t.word(spot.i) : pinned >= 0 ? main.t.word(pinned) : null;
    const marked = new Set(model.get("details").marked);
    for (const pane of drawn()) {
      const { t, cells } = pane, column = columnOf(pane), scale = scaleOf(pane), own = t === main.t;
      cells.forEach((cell, i) => {
        const value = column ? column.values[i] ?? NaN : NaN, [fill, ink, sign] = column ? colours(value, column, scale) : ["", "", ""];
        const mark = t.stop ? t.stop.marks[t.stop.values[i]] || "" : "";
        const name = `th-cell${fill ? "" : " unknown"}${t.word(i) ? "" : " empty"}${mark ? ` stopped${ink === "#000000" ? " light" : ""}` : ""}${t.word(i) === lit ? " same" : ""}`
          + `${own && i === pinned ? " pinned" : ""}${own && marked.has(i) ? " coupled" : ""}${i === pane.active ? " active" : ""}`;
        const look = [fill, ink, sign, mark, name, value].join("\n");
        if (cell.look === look) return;
        Object.assign(cell, { look, className: name });
        Object.assign(cell.style, { backgroundColor: fill, color: ink });
        Object.assign(cell.dataset, { sign, mark });
        cell.setAttribute("aria-selected", own && i === pinned);
        cell.setAttribute("aria-label", `${t.name(i)}, ${t.rows[t.rowOf[i]]}, position ${t.positionOf[i]}${column ? `, ${column.words} ${text(column, value)}` : ""}${mark ? `, ${MEANINGS[mark]}` : ""}`); });
    }
    root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
  }
  const draw = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(paint); };

  // --- menus, legend and steps

  function menu(label, options, value, change, said = option => option) {
    const box = make("label", "", `${label} `), select = make("select", "", "", { onchange: () => change(select.value), "aria-label": label });
    select.append(...options.map(option => make("option", "", said(option), { value: option, selected: option === value })));
    box.append(select);
    bar.append(box);
  }

  function build() {
    const focused = document.activeElement?.getAttribute("aria-label"), held = bar.contains(document.activeElement), groups = model.get("groups").map(String);
    bar.replaceChildren();
    if (groups.length > 1) menu("group", groups, String(model.get("group")), value => set("group", Number(value)));
    menu("colour by", main.t.columns.map(c => c.name), model.get("column"), value => set("column", value), words);
    menu("compare with", ["nothing", ...model.get("choices")], model.get("compare") || "nothing", value => set("compare", value === "nothing" ? "" : value), choice => choice.startsWith("column ") ? words(choice.slice(7)) : choice);
    const modes = make("span", "th-modes", "", { role: "group", "aria-label": "how rollouts are shown" });
    for (const [name, label] of [["align", "aligned"], ["read", "as text"]]) modes.append(make("button", "th-mode", label, { onclick: () => set("mode", name), "aria-pressed": mode() === name, "aria-label": label }));
    const legend = make("span", "th-legend"), marks = main.t.stop ? main.t.stop.marks.filter((m, k, all) => m && all.indexOf(m) === k) : [];
    if (marks.length) legend.append(make("span", "", marks.map(m => `${m} ${MEANINGS[m]}`).join("  ")));
    if (columnOf(main)) drawLegend(legend, columnOf(main), scaleOf(main));
    bar.append(modes, legend);
    if (held) bar.querySelector(`[aria-label="${focused}"]`)?.focus();
    main.heading.textContent = beside.t ? model.get("other").name ? `step ${model.get("step")}` : words(model.get("column")) : "";
    beside.heading.textContent = beside.t ? [model.get("other").name || words(column()), model.get("other").note, columnOf(beside) ? "" : `has no column ${model.get("column")}`].filter(Boolean).join(": ") : "";
    if (beside.t && columnOf(beside) && !isShared(columnOf(main), columnOf(beside))) drawLegend(beside.heading, columnOf(beside), scaleOf(beside));
  }

  const slider = make("input", "", "", { type: "range", min: 0, step: 1, "aria-label": "recorded step" }), where = make("output"), stepBox = make("label", "th-steps", "step ");
  let rest = 0;
  stepBox.append(slider, where);
  walk.append(stepBox, make("button", "th-look", "Look for new steps", { onclick: () => model.send({ kind: "look" }) }));
  const name = () => { where.textContent = `${model.get("steps")[Number(slider.value)] ?? "none"}`; };
  slider.oninput = () => { name(); clearTimeout(rest); rest = setTimeout(() => { rest = 0; set("step", model.get("steps")[Number(slider.value)]); }, 120); };  // where the hand rests
  slider.onkeydown = event => event.stopPropagation();
  function placeSlider() {
    const steps = model.get("steps");
    walk.hidden = !steps.length;
    slider.max = Math.max(0, steps.length - 1);
    if (!rest) slider.value = Math.max(0, steps.indexOf(model.get("step")));
    name();
  }

  // --- the token under the pointer, or the one that the keys have reached; the pinned one

  function point(pane, i) {
    if (i < 0 ? !spot : spot && spot.pane === pane && spot.i === i) return;
    spot = i < 0 ? null : { pane, i };
    const t = pane.t, facts = i < 0 ? [] : [["token", t.name(i)], ["in", t.rows[t.rowOf[i]]], ["position", t.positionOf[i]], ...t.columns.filter(c => c.values.length).map(c => [c.words.replace(/ \([\w ]+\)$/, ""), text(c, c.values[i])])];
    tip.replaceChildren(...facts.map(([name, value]) => { const fact = make("span", "th-fact"); fact.append(make("span", "th-name", name), make("span", "th-value", value)); return fact; }));
    if (!facts.length) tip.append(make("span", "th-hint", HINT));
    tip.style.minHeight = `${Math.max(parseFloat(tip.style.minHeight) || 0, tip.offsetHeight)}px`;  // what lies below stays where it is
    draw();
  }

  function pin(pane, i) {
    if (pane.t === main.t) return set("pinned", model.get("pinned") === i ? -1 : i);
    const twins = [...main.t.kinds.keys()].filter(k => main.t.word(k) === pane.t.word(i));  // of another step: the same word
    if (twins.length) set("pinned", twins[0]);
  }

  function explain() {
    const known = model.get("details"), column = main.t.columns.find(c => c.moves);
    if (column) Object.assign(column, { values: new Float32Array(bytes(model.get("moves"))), limit: model.get("moves_limit") });
    details.replaceChildren(...(known.lines || []).map(line => make("p", "", line)), ...(known.tables || []).map(table => panelTable(table, i => moveTo(main, i))));
    build();
    draw();
  }

  function busy() {
    const { text: words, share } = model.get("busy");
    if (!words) return working.replaceChildren();
    if (!working.firstChild) working.append(make("progress", "", "", { max: 1, "aria-label": "how far the explanation is" }), make("button", "", "Stop", { onclick: () => model.send({ kind: "stop" }) }), make("span"));  // once, so that a hand on Stop finds it
    working.firstChild.value = share || 0;
    working.lastChild.textContent = words;
  }

  function read() {
    const other = model.get("other");
    main.t = decode(model.get("main"));
    beside.t = column() ? main.t : other.shape ? decode(other) : null;
    panes.replaceChildren(...drawn().map(pane => pane.box));
    panes.classList.toggle("two", Boolean(beside.t));
    const [asked, answer] = main.t.asked;
    prompt.replaceChildren(...(asked ? ["prompt ", make("code", "", asked)] : []), ...(answer ? [", right answer ", make("code", "", answer)] : []));
    spot = null;
    lay();
    point(main, -1);
    tip.childElementCount || tip.append(make("span", "th-hint", HINT));
  }
  let laid = "";
  function lay() { caption.textContent = model.get("title"); root.dataset.mode = laid = mode(); for (const pane of drawn()) layOut(pane, model.get("title")); explain(); }

  root.onkeydown = event => {
    if (event.key === "m" && event.target.tagName !== "SELECT" && !event.ctrlKey && !event.metaKey) set("mode", mode() === "read" ? "align" : "read");
    else if (event.key === "Escape") { point(main, -1); set("pinned", -1); } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const later = react => { let asked = 0; return () => { cancelAnimationFrame(asked); asked = requestAnimationFrame(react); }; };  // several traits come in one message
  const parts = [["main other compare", later(read)], ["mode", lay], ["column details moves", later(explain)], ["pinned", draw], ["steps step", placeSlider], ["busy", busy],
    ["message", () => { status.textContent = model.get("message"); }]].flatMap(([names, react]) => names.split(" ").map(one => [`change:${one}`, react]));
  for (const [event, react] of parts) model.on(event, react);
  const resized = new ResizeObserver(() => { if (mode() !== laid) lay(); });
  read();
  placeSlider();
  busy();
  status.textContent = model.get("message");
  resized.observe(root);
  return () => { resized.disconnect(); cancelAnimationFrame(frame); for (const [event, react] of parts) model.off(event, react); };
}
export default { render };
