// One pane of cells: aligned by position, of which the cells in sight are in the page, or answers to read as wrapped
// text, of which those in sight are. grid > row > rowheader and gridcells. Every text goes in by textContent.

const ROW = 24, LABEL = 132, GAP = 1, CHARACTER = 7.2, PADDING = 16, TALLEST = 460;
const ANSWER_LINE = 30, LETTER = 7.5, NEAR = 90;  // px, of an answer to read: a line, a letter's guess, what is prepared beyond sight

// Width of each position where rollouts stand aligned, and of all of them with their names.
function alignedWidths(t) {
  const widths = new Float32Array(t.positions).fill(2 * CHARACTER + PADDING);
  for (let i = 0; i < t.tokens; i++) {
    const wide = Math.min(t.texts[t.kinds[i]].length, 14) * CHARACTER + PADDING;
    if (wide > widths[t.positionOf[i]]) widths[t.positionOf[i]] = wide;
  }
  return widths;
}
const alignedWidth = t => t.wide ??= LABEL + alignedWidths(t).reduce((sum, wide) => sum + wide, 0);

// A token's text with its spaces, tabs and line breaks marked by the style sheet; what is selected is the text itself.
function fillText(cell, raw) {
  const kinds = { " ": "th-space", "\n": "th-newline", "\t": "th-tab" };
  if (!raw) cell.classList.add("empty");
  for (const part of raw.split(/([\n\t]|\s)/)) {
    if (!part) continue;
    if (kinds[part] || /^\s$/.test(part)) cell.append(make("span", kinds[part] || "th-space", part));
    else cell.append(part);
  }
}

// shell: mode() and, of token i of this pane, look(pane, i) -> {fill, ink, sign, classes, label, selected};
// hover(pane, i), pin(pane, i), moved(pane), scrolled(pane)
function makePane(shell, id) {
  const box = make("div", "th-pane"), heading = make("div", "th-heading"), grid = make("div", "th-grid"), canvas = make("div", "th-canvas");
  const pane = { box, heading, grid, t: null, active: -1, hovered: -1, ids: id };
  let rows = new Map(), cells = new Map(), lefts = null, width = 0;
  grid.tabIndex = 0;
  grid.setAttribute("role", "grid");
  grid.append(canvas);
  box.append(heading, grid);

  // --- laid out anew: another group, another mode, another width

  pane.show = (t, title) => {
    pane.t = t;
    pane.active = pane.hovered = -1;
    grid.setAttribute("aria-label", title);
    grid.setAttribute("aria-rowcount", t.rows.length);
    grid.setAttribute("aria-colcount", t.positions);
    grid.removeAttribute("aria-activedescendant");
    pane.layOut();
  };

  pane.layOut = () => {
    const { t } = pane, reading = shell.mode() === "read";
    canvas.replaceChildren();
    rows = new Map();
    cells = new Map();
    box.classList.toggle("read", reading);
    canvas.style.width = canvas.style.height = grid.style.height = "";
    width = grid.clientWidth;
    if (reading) {
      t.rows.forEach((_, row) => canvas.append(makeRow(row)));
      return;
    }
    const widths = alignedWidths(t);
    lefts = new Float32Array(t.positions + 1);
    for (let p = 0; p < t.positions; p++) lefts[p + 1] = lefts[p] + widths[p];
    canvas.style.width = `${LABEL + lefts[t.positions]}px`;
    canvas.style.height = `${t.rows.length * ROW}px`;
    grid.style.height = `${Math.min(t.rows.length * ROW + 16, TALLEST)}px`;
  };

  function makeRow(row) {
    const node = make("div", "th-row"), name = make("div", "th-label", pane.t.rows[row]), reading = shell.mode() === "read";
    node.setAttribute("role", "row");
    node.setAttribute("aria-rowindex", row + 1);
    name.setAttribute("role", "rowheader");
    node.append(name);
    rows.set(row, node);
    if (reading) {
      const letters = answer(pane.t, row).reduce((sum, i) => sum + pane.t.raw[pane.t.kinds[i]].length + 1, 0);
      const body = make("div", "th-answer");
      body.style.minHeight = `${Math.ceil(letters * LETTER / Math.max(80, width - 16)) * ANSWER_LINE}px`;
      node.append(body);
    } else node.style.top = `${row * ROW}px`;
    return node;
  }

  function makeCell(i) {
    const { t } = pane, reading = shell.mode() === "read", cell = make(reading ? "span" : "div", "th-cell");
    if (reading) fillText(cell, t.raw[t.kinds[i]]);
    else cell.textContent = t.texts[t.kinds[i]];
    cell.id = `${id}-${i}`;
    cell.dataset.token = i;
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-colindex", t.positionOf[i] + 1);
    if (!reading) {
      cell.style.left = `${LABEL + lefts[t.positionOf[i]]}px`;
      cell.style.width = `${lefts[t.positionOf[i] + 1] - lefts[t.positionOf[i]] - GAP}px`;
    }
    cells.set(i, cell);
    return cell;
  }

  // --- drawing what is in sight

  pane.draw = () => {
    if (!pane.t) return;
    if (shell.mode() === "read") fillAnswers();
    else placeCells();
    for (const [i, cell] of cells) paint(i, cell);
  };

  function placeCells() {
    const { t } = pane, first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 1);
    const last = Math.min(t.rows.length - 1, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW));
    const from = Math.max(0, after(grid.scrollLeft) - 1), to = Math.min(t.positions, after(grid.scrollLeft + grid.clientWidth) + 1);
    for (const [row, node] of rows) if (row < first || row > last) { node.remove(); rows.delete(row); }
    const wanted = new Set();
    for (let row = first; row <= last; row++) {
      if (!rows.has(row)) canvas.append(makeRow(row));
      for (let p = from; p < to; p++) {
        const i = t.at[row * t.positions + p];
        if (i < 0) continue;
        wanted.add(i);
        if (!cells.has(i) || !cells.get(i).isConnected) rows.get(row).append(makeCell(i));
      }
    }
    for (const [i, cell] of cells) if (!wanted.has(i)) { cell.remove(); cells.delete(i); }
  }

  function after(x) {  // first position whose left edge lies beyond x pixels of scrolling
    let low = 0, high = pane.t.positions;
    while (low < high) { const middle = (low + high) >> 1; if (lefts[middle] <= x) low = middle + 1; else high = middle; }
    return low;
  }

  function fillAnswers(towards = -1) {  // an answer's height is a guess until it is filled, and is kept once it was
    const low = grid.scrollTop - NEAR, high = grid.scrollTop + grid.clientHeight + NEAR, filling = [], emptying = [];
    for (const [row, node] of rows) {  // all is measured before anything is changed: one layout, not one a row
      const near = row === towards || (node.offsetTop + node.offsetHeight > low && node.offsetTop < high), body = node.lastChild;
      if (near && !body.hasChildNodes()) filling.push([row, body]);
      else if (!near && body.hasChildNodes()) emptying.push([row, body, body.offsetHeight]);
    }
    for (const [row, body, height] of emptying) {
      body.style.minHeight = `${height}px`;
      for (const i of answer(pane.t, row)) cells.delete(i);
      body.replaceChildren();
    }
    for (const [row, body] of filling) fillAnswer(row, body);
  }

  function fillAnswer(row, body) {
    const parts = [];
    for (const i of answer(pane.t, row)) {
      if (parts.length && pane.t.words) parts.push(" ");
      const cell = makeCell(i);
      paint(i, cell);  // before it is in the page
      parts.push(cell);
    }
    body.style.minHeight = "";
    body.append(...parts);
  }

  function paint(i, cell) {
    const { fill, ink, sign, mark, classes, label, selected } = shell.look(pane, i), drawn = [fill, ink, sign, mark, classes, label].join("\n");
    if (cell.drawn === drawn) return;
    cell.drawn = drawn;
    cell.style.backgroundColor = fill;
    cell.style.color = ink;
    cell.dataset.sign = sign;
    cell.dataset.mark = mark;
    cell.className = `th-cell${fill ? "" : " unknown"}${cell.hasChildNodes() ? "" : " empty"}${ink === "#000000" ? " light" : ""}${classes}`;
    cell.setAttribute("aria-selected", selected);
    cell.setAttribute("aria-label", label);
  }

  // --- hands: hover, click, keys

  const under = node => { const cell = node?.closest?.(".th-cell"); return cell && grid.contains(cell) ? Number(cell.dataset.token) : -1; };
  pane.under = (x, y) => under(grid.ownerDocument.elementFromPoint(x, y));

  pane.moveTo = i => {
    const { t } = pane;
    pane.active = i;
    if (shell.mode() === "read") {
      if (!cells.has(i)) fillAnswers(t.rowOf[i]);
      reveal(cells.get(i));
      fillAnswers(t.rowOf[i]);  // what came into sight may have another height than was guessed
      reveal(cells.get(i));
    } else {
      const left = LABEL + lefts[t.positionOf[i]], wide = lefts[t.positionOf[i] + 1] - lefts[t.positionOf[i]], top = t.rowOf[i] * ROW;
      if (left < grid.scrollLeft + LABEL) grid.scrollLeft = left - LABEL;
      if (left + wide > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = left + wide - grid.clientWidth;
      if (top < grid.scrollTop) grid.scrollTop = top;
      if (top + ROW > grid.scrollTop + grid.clientHeight - 16) grid.scrollTop = top + ROW + 16 - grid.clientHeight;
    }
    grid.setAttribute("aria-activedescendant", `${id}-${i}`);
    shell.moved(pane);
  };

  function reveal(cell) {  // within the grid alone: the page stays where it is
    const frame = grid.getBoundingClientRect(), place = cell.getBoundingClientRect();
    if (place.top < frame.top + ANSWER_LINE) grid.scrollTop -= frame.top + ANSWER_LINE - place.top;
    if (place.bottom > frame.bottom - ANSWER_LINE) grid.scrollTop += place.bottom - frame.bottom + ANSWER_LINE;
  }

  function neighbour(i, down, right) {
    const { t } = pane;
    let row = t.rowOf[i] + down, p = t.positionOf[i] + right;
    for (; row >= 0 && row < t.rows.length && p >= 0 && p < t.positions; row += down, p += right)
      if (t.at[row * t.positions + p] >= 0) return t.at[row * t.positions + p];
    return i;
  }

  function lineAway(i, down) {  // the token above or below as the text is wrapped, also of the answer before or after
    if (!cells.has(i)) return neighbour(i, down, 0);
    const { t } = pane, here = cells.get(i).getBoundingClientRect(), x = here.left + here.width / 2, row = t.rowOf[i];
    fillAnswers(row);
    for (const [near, edge] of [[row, false], [row + down, true]]) {
      if (!rows.has(near)) continue;
      if (edge) fillAnswers(near);
      const places = answer(t, near).map(k => [k, cells.get(k)?.getClientRects()[0]]).filter(([, at]) => at);
      const beyond = places.filter(([, at]) => edge || (down > 0 ? at.top >= here.bottom - 4 : at.bottom <= here.top + 4));
      if (!beyond.length) continue;
      const line = (down > 0 ? Math.min : Math.max)(...beyond.map(([, at]) => at.top)), off = ([, at]) => Math.abs(at.left + at.width / 2 - x);
      return beyond.filter(([, at]) => Math.abs(at.top - line) < ANSWER_LINE / 2).reduce((a, b) => off(b) < off(a) ? b : a)[0];
    }
    return i;
  }

  pane.step = event => {  // the token that a key goes to, -1 for another key
    const { t, active } = pane, vertical = { ArrowUp: -1, ArrowDown: 1 }[event.key], start = t.at.find(i => i >= 0);
    if (!vertical && !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return -1;
    if (event.ctrlKey && event.key === "Home") return start;
    if (event.ctrlKey && event.key === "End") return t.at.findLast(i => i >= 0);
    if (active < 0) return start;
    const line = answer(t, t.rowOf[active]);
    if (event.key === "Home") return line[0];
    if (event.key === "End") return line[line.length - 1];
    if (vertical) return shell.mode() === "read" ? lineAway(active, vertical) : neighbour(active, vertical, 0);
    return neighbour(active, 0, event.key === "ArrowLeft" ? -1 : 1);
  };

  grid.onscroll = () => shell.scrolled(pane);
  grid.onmousemove = event => shell.hover(pane, under(event.target), event);
  grid.onmouseleave = () => shell.hover(pane, -1);
  grid.onclick = event => { const i = under(event.target); if (i >= 0) { pane.active = i; shell.pin(pane, i); } };
  grid.onkeydown = event => {
    const to = pane.step(event);
    if (to >= 0) pane.moveTo(to);
    else if ((event.key === "Enter" || event.key === " ") && pane.active >= 0) shell.pin(pane, pane.active);
    else return;
    event.preventDefault();
    event.stopPropagation();  // the notebook has keys of its own
  };
  pane.resized = () => { if (shell.mode() === "read" && Math.abs(grid.clientWidth - width) > 1) pane.layOut(); };
  return pane;
}
