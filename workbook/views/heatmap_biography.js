// A word's biography below the cells: over a run's recorded steps its mean log-probability before and after each step,
// and its mean push. Put before heatmap.js in one module; every text goes into the page by textContent.

const SVG = "http://www.w3.org/2000/svg", WIDE = 520, LINE = 84, BARS = 34, SIDE = 64, EDGE = 12;
const BEFORE = "#8a8a8a", AFTER = "#7d62d6", UP = "#2f78b3", DOWN = "#c5690d";

function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

// life: {step, places, logp, logp_after, push: lists, null where unknown, word, sentence}; go(step) shows that step
function drawBiography(life, shown, write, go) {
  const n = life.step.length, known = [...life.logp, ...life.logp_after].filter(x => x !== null);
  const box = make("figure", "th-life"), svg = shape("svg", { viewBox: `0 0 ${WIDE} ${LINE + BARS + 18}`, role: "img" });
  svg.setAttribute("aria-label", life.sentence);
  const first = life.step[0], last = life.step[n - 1], low = Math.min(...known), high = Math.max(...known, low + 1e-9);
  const most = Math.max(...life.push.map(x => Math.abs(x ?? 0))) || 1;
  const x = step => n < 2 ? (SIDE + WIDE - EDGE) / 2 : SIDE + (step - first) / (last - first) * (WIDE - SIDE - EDGE);
  const y = value => 8 + (high - value) / (high - low) * (LINE - 16), zero = LINE + BARS / 2;
  const label = (text, top) => svg.append(shape("text", { x: SIDE - 6, y: top, "text-anchor": "end" }, text));

  const line = (values, stroke, dash) => {
    let path = "", pen = "M";
    values.forEach((value, k) => { if (value === null) pen = "M"; else { path += `${pen}${x(life.step[k]).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; } });
    svg.append(shape("path", { d: path, fill: "none", stroke, "stroke-width": 1.5, "stroke-dasharray": dash }));
    values.forEach((value, k) => { if (value !== null) svg.append(shape("circle", { cx: x(life.step[k]), cy: y(value), r: 2, fill: stroke })); });
  };
  svg.append(shape("line", { x1: SIDE, x2: WIDE - EDGE, y1: zero, y2: zero, stroke: "#bbb" }));
  if (shown >= first && shown <= last) svg.append(shape("line", { x1: x(shown), x2: x(shown), y1: 0, y2: LINE + BARS, stroke: "#8a5aa8", "stroke-dasharray": "3 2" }));
  if (known.length) {
    line(life.logp, BEFORE, "4 3");
    line(life.logp_after, AFTER, "");
    label(write(high), y(high) + 4);
    if (high - low > 1e-6) label(write(low), y(low) + 4);
  }
  life.push.forEach((value, k) => {
    if (!value) return;
    const size = Math.max(1, Math.abs(value) / most * BARS / 2);
    svg.append(shape("rect", { x: x(life.step[k]) - 2, width: 4, y: value > 0 ? zero - size : zero, height: size, fill: value > 0 ? UP : DOWN }));
  });
  label("push", zero + 4);
  for (const [step, anchor] of n < 2 ? [[first, "middle"]] : [[first, "start"], [last, "end"]])
    svg.append(shape("text", { x: x(step), y: LINE + BARS + 14, "text-anchor": anchor }, `step ${step}`));
  life.step.forEach((step, k) => {  // what can be hovered and clicked
    const half = n < 2 ? 20 : Math.max(3, (WIDE - SIDE - EDGE) / n / 2);
    const column = shape("rect", { x: x(step) - half, y: 0, width: 2 * half, height: LINE + BARS, fill: "transparent", cursor: "pointer" });
    column.append(shape("title", {}, rowText(life, k, write).join(", ")));
    column.onclick = () => go(step);
    svg.append(column);
  });
  const caption = make("figcaption", "", `${life.sentence} Grey: before each step, violet: after it; bars: mean push, blue up, orange down.`);
  box.append(caption, svg, numbers(life, write));
  return box;
}

const rowText = (life, k, write) => [`step ${life.step[k]}`, `${life.places[k]} places`,
  ...(life.places[k] ? [`log-probability ${write(life.logp[k])} before, ${write(life.logp_after[k])} after`, `push ${write(life.push[k])}`] : [])];

// the same numbers as a table, for whoever can't see the drawing
function numbers(life, write) {
  const names = ["step", "places", "logp", "logp_after", "push", "advantage", "stopped"], table = make("table"), head = make("tr");
  const fold = make("details"), title = make("summary", "", "These numbers as a table");
  for (const name of names) head.append(make("th", "", name));
  table.append(head);
  life.step.forEach((_, k) => {
    const row = make("tr");
    for (const name of names) row.append(make("td", "number", name === "step" || name === "places" ? String(life[name][k]) : write(life[name][k])));
    table.append(row);
  });
  fold.append(title, table);
  return fold;
}
