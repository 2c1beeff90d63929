// The page's half of TokenHeatmap: one pane of cells, or two to compare, with their menus, the row of the token under
// the pointer below them, and what is known of the pinned one. What a model wrote is shown, never parsed.

const HINT = "Point at a token, or walk with the arrow keys: its row stands here. Enter or a click pins it, m switches between text and aligned cells.";

function render({ model, el }) {
  const root = make("div", "token-heatmap"), bar = make("div", "th-bar"), panes = make("div", "th-panes");
  const tip = make("div", "th-tip"), details = make("div", "th-details"), working = make("div", "th-busy"), prompt = make("div", "th-prompt"), status = make("div", "th-message");
  const menus = {}, modes = {}, id = `th${Math.random().toString(36).slice(2)}`;
  let reading = 0, explaining = 0, frame = 0, stale = false, searching = null, spot = null, pointer = null, driven = null, tall = 0, wide = 0;
  details.setAttribute("role", "status");
  status.setAttribute("role", "status");
  tip.setAttribute("role", "group");
  tip.setAttribute("aria-label", "the token under the pointer");
  root.dataset.lmSuppressShortcuts = "true";  // the notebook has keys of its own
  root.append(bar, status, prompt, panes, tip, working, details);
  el.append(root);

  const mode = () => model.get("mode") !== "auto" ? model.get("mode") : wide && main.t && alignedWidth(main.t) > wide ? "read" : "align";  // the whole answer is seen
  const shell = { mode, look, hover, pin, moved, scrolled };
  const main = makePane(shell, id), beside = makePane(shell, `${id}-b`);
  const drawn = () => beside.t ? [main, beside] : [main];
  panes.append(main.box);

  // --- the tables, as they came over the wire

  function read() {
    stale = false;
    const other = model.get("other");
    main.t = decode({ shape: model.get("shape"), columns: model.get("columns"), values: model.get("values"), places: model.get("places") });
    main.t.coupling = floats(model.get("coupling"));
    beside.t = other.shape ? decode(other) : null;
    if (beside.t) panes.append(beside.box);
    else beside.box.remove();
    panes.classList.toggle("two", Boolean(beside.t));
    spot = null;
    main.show(main.t, model.get("title"));
    if (beside.t) beside.show(beside.t, other.title);
    prompt.textContent = model.get("prompt") ? `prompt: ${model.get("prompt")}` : "";
    build();
    explain();
    point();
    searching = pointer;
  }

  const nameOf = pane => pane === beside && model.get("other").column || model.get("column");
  const coloured = pane => columnOf(pane.t, nameOf(pane));
  const own = column => column.slot < 0 ? { ...column, limit: model.get("coupling_limit") } : column;
  function scaleOf(pane) {
    const mine = own(coloured(pane));
    return beside.t && common(own(coloured(main)), own(coloured(beside))) || mine;
  }
  const places = (pane, i) => pane === main || model.get("other").same ? i : -1;  // the same token in the other pane, -1: none

  // --- how a token looks

  let scene = null;  // what is the same for all tokens of one drawing
  function prepare() {
    const pinned = model.get("pinned"), lit = spot ? spot.pane.t.raw[spot.pane.t.kinds[spot.i]] : pinned >= 0 ? main.t.raw[main.t.kinds[pinned]] : null;
    const coupled = new Set((model.get("details").coupled || []).map(c => c.index)), filter = model.get("filter");
    scene = new Map(drawn().map(pane => [pane, {
      column: coloured(pane), scale: scaleOf(pane), lit, coupled, pinned: places(pane, pinned),
      filter: filter.column ? columnOf(pane.t, filter.column) : null, only: filter.value,
    }]));
  }

  function look(pane, i) {
    const { t } = pane, { column, scale, lit, coupled, pinned, filter, only } = scene.get(pane), value = valueOf(t, i, column), mark = markOf(t, i);
    const out = filter && !filter.missing && shown(t, i, filter) !== only;
    const [fill, ink, sign] = out ? ["", "", ""] : colours(value, column, scale);
    const classes = (mark ? " stopped" : "") + (t.raw[t.kinds[i]] === lit ? " same" : "") + (i === pinned ? " pinned" : "")
      + (places(pane, i) >= 0 && coupled.has(i) ? " coupled" : "") + (i === pane.active ? " active" : "") + (out ? " out" : "");
    const label = `${t.texts[t.kinds[i]] || "(empty)"}, ${t.rows[t.rowOf[i]]}, position ${t.positionOf[i]}, ${column.name} ${text(column, value)}${mark ? `, ${shown(t, i, t.stop)}` : ""}`;
    return { fill, ink, sign, mark, classes, label, selected: i === pinned };
  }

  function draw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      if (!main.t || stale) return;
      if (!root.clientWidth) { resized.unobserve(root); resized.observe(root); return; }  // hidden: drawn when it is seen
      prepare();
      for (const pane of drawn()) pane.draw();
      root.dataset.drawn = Number(root.dataset.drawn || 0) + 1;
      if (searching) underPointer();
    });
  }

  function scrolled(pane) {  // both panes scroll together: by pixels where they hold the same tokens, else by share
    draw();
    if (!beside.t || driven === pane) { driven = null; return; }
    const other = pane === main ? beside : main, from = pane.grid, to = other.grid, before = [to.scrollLeft, to.scrollTop];
    const share = (at, all, mine, whole, its) => model.get("other").same && all === whole ? at : all > mine ? at / (all - mine) * (whole - its) : 0;
    to.scrollLeft = share(from.scrollLeft, from.scrollWidth, from.clientWidth, to.scrollWidth, to.clientWidth);
    to.scrollTop = share(from.scrollTop, from.scrollHeight, from.clientHeight, to.scrollHeight, to.clientHeight);
    if (before[0] !== to.scrollLeft || before[1] !== to.scrollTop) driven = other;
  }

  // --- menus and legend

  function menu(name, label, options, value, change, title) {
    const box = make("label", "", `${label} `), select = make("select");
    for (const option of options) {
      const node = make("option", "", option);
      node.value = option;
      select.append(node);
    }
    select.value = value;
    select.title = title;
    select.setAttribute("aria-label", label);
    select.onchange = () => change(select.value);
    menus[name] = select;
    box.append(select);
    bar.append(box);
  }

  function build() {
    const focus = root.ownerDocument.activeElement, controls = { ...menus, ...modes }, focused = Object.keys(controls).find(name => controls[name] === focus);
    bar.replaceChildren();
    const groups = model.get("groups").map(String);
    if (groups.length > 1) menu("group", "group", groups, String(model.get("group")), value => set("group", Number(value)), "The rollouts of one prompt");
    menu("column", "colour by", main.t.columns.map(c => c.name), model.get("column"), value => set("column", value), "The column of the token table that gives each token its colour");
    const choices = ["all tokens"], filter = model.get("filter");
    for (const c of main.t.columns) if (c.levels) for (const level of c.levels) choices.push(`${c.name}: ${level}`);
    if (choices.length > 1)
      menu("filter", "show", choices, filter.column ? `${filter.column}: ${filter.value}` : choices[0], value => {
        const cut = value.indexOf(": ");
        set("filter", cut < 0 ? {} : { column: value.slice(0, cut), value: value.slice(cut + 2) });
      }, "Colour only the tokens of one category");
    if (model.get("choices").length)
      menu("compare", "compare with", ["nothing", ...model.get("choices")], model.get("compare") || "nothing", value => set("compare", value === "nothing" ? "" : value), "A second pane: another column, or another step of the run, in the same colours");
    const both = make("span", "th-modes");
    both.setAttribute("role", "group");
    both.setAttribute("aria-label", "how rollouts are shown");
    for (const [name, label, title] of [["align", "aligned", "One line a rollout, tokens of one position below one another (m)"], ["read", "as text", "The whole answers, wrapped as text (m)"]]) {
      const button = modes[name] = make("button", "th-mode", label);
      button.title = title;
      button.onclick = () => set("mode", name);
      both.append(button);
    }
    bar.append(both, make("span", "th-legend"));
    if (focused) (modes[focused] || menus[focused])?.focus();
    legend();
  }

  function legend() {
    root.dataset.mode = mode();
    for (const [name, button] of Object.entries(modes)) button.setAttribute("aria-pressed", name === mode());
    if (!main.t) return;
    const place = bar.querySelector(".th-legend"), marks = main.t.stop ? [...new Set(main.t.stop.marks.filter(m => m))] : [];
    place.replaceChildren();
    if (marks.length) place.append(make("span", "", marks.map(m => `${m} ${MEANINGS[m] || ""}`).join("  ")));
    drawLegend(place, coloured(main), scaleOf(main), main.t);
    main.heading.replaceChildren();
    beside.heading.replaceChildren();
    if (!beside.t) return;
    const { names, note } = model.get("other"), shared = common(own(coloured(main)), own(coloured(beside)));
    main.heading.append(make("span", "th-title", names[0] || nameOf(main)));
    beside.heading.append(make("span", "th-title", names[1] || nameOf(beside)));
    if (note) beside.heading.append(make("span", "", note));
    if (coloured(beside).missing) beside.heading.append(make("span", "", `has no column ${nameOf(beside)}`));
    else if (!shared) {
      const scale = make("span", "th-legend");
      drawLegend(scale, coloured(beside), scaleOf(beside), beside.t);
      beside.heading.append(scale);
    }
  }

  function set(name, value) { model.set(name, value); model.save_changes(); }

  // --- the token under the pointer, or the one that the keys have reached

  function hover(pane, i, event) {
    pointer = event ? { x: event.clientX, y: event.clientY } : null;
    if (i < 0 ? !spot || !spot.hovered : spot && spot.pane === pane && spot.i === i) return;
    spot = i < 0 ? null : { pane, i, hovered: true };
    point();
    draw();
  }

  function underPointer() {  // what the resting pointer points at among new tokens
    const { x, y } = searching;
    searching = null;
    for (const pane of drawn()) if (pane.under(x, y) >= 0) hover(pane, pane.under(x, y), { clientX: x, clientY: y });
  }

  function moved(pane) {
    for (const one of drawn()) if (one !== pane) one.active = -1;
    spot = { pane, i: pane.active, hovered: false };
    point();
    draw();
  }

  function point() {  // what stands below the cells, never on them
    const facts = spot ? factsOf(spot.pane, spot.i) : [];
    tip.classList.toggle("visible", facts.length > 0);
    tip.replaceChildren(...facts.map(([name, value]) => {
      const fact = make("span", "th-fact");
      fact.append(make("span", "th-name", name), make("span", "th-value", value));
      return fact;
    }));
    if (!facts.length) tip.append(make("span", "th-hint", HINT));
    tip.style.minHeight = `${tall = Math.max(tall, tip.offsetHeight)}px`;  // what lies below stays where it is
  }

  function factsOf(pane, i) {
    const { t } = pane, twin = beside.t && model.get("other").same ? (pane === main ? beside : main).t : null;
    const [one, two] = pane === main ? [t, twin] : [twin, t], facts = [["token", t.texts[t.kinds[i]] || "(empty)"], ["rollout", t.rows[t.rowOf[i]]], ["position", String(t.positionOf[i])]];
    const value = (table, c) => { const at = columnOf(table, c.name); return at.missing ? "" : shown(table, i, at); };
    for (const c of t.columns) {
      if (c.slot < 0 && !main.t.coupling.length) continue;
      const values = twin ? [value(one, c), value(two, c)].filter(x => x) : [shown(t, i, c)];
      facts.push([c.name, values.length > 1 && values[0] !== values[1] ? values.join(" | ") : values[0]]);
    }
    return facts;
  }

  function pin(pane, i) {
    const { t } = pane, same = places(pane, i);
    if (same >= 0) return set("pinned", model.get("pinned") === same ? -1 : same);
    const word = t.raw[t.kinds[i]], near = k => Math.abs(main.t.positionOf[k] - t.positionOf[i]);  // of other rollouts: the same word
    const twins = [...main.t.kinds.keys()].filter(k => main.t.raw[main.t.kinds[k]] === word);
    if (twins.length) set("pinned", twins.reduce((a, b) => near(b) < near(a) ? b : a));
    else status.textContent = `${t.texts[t.kinds[i]]} is in no rollout of the group beside.`;
  }

  root.onkeydown = event => {  // of the cells, the panel and the menus alike
    const typing = ["SELECT", "INPUT"].includes(event.target.tagName);
    if (event.key === "m" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) set("mode", mode() === "read" ? "align" : "read");
    else if (event.key === "Escape") {
      spot = null;
      point();
      draw();
      if (details.contains(root.ownerDocument.activeElement)) main.grid.focus();
      if (model.get("pinned") >= 0) set("pinned", -1);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };

  // --- what is known about the pinned token

  function explain() {
    if (stale) return;  // read() does it, once it knows the new tokens
    main.t.coupling = floats(model.get("coupling"));
    if (beside.t && model.get("other").same) beside.t.coupling = main.t.coupling;
    const known = model.get("details"), unfolded = Boolean(details.querySelector("details[open]"));
    details.replaceChildren();
    if (known.lines) {
      const [about, ...coupled] = known.lines, life = model.get("biography");
      const go = index => { main.moveTo(index); main.grid.focus(); };
      details.append(make("p", "", about));
      for (const line of known.explained || []) details.append(make("p", "th-explained", line));
      for (const table of known.tables || []) details.append(panelTable(table, go));
      if ((known.loss || []).length) {
        const loss = make("div", "th-loss");
        for (const line of known.loss) loss.append(make("p", "", line));
        details.append(loss);
      }
      if (known.objectives) details.append(panelTable(known.objectives, go));
      if (life.step && life.step.length) details.append(drawBiography(life, model.get("step"), unsigned, step => set("step", step)));
      if (unfolded) details.querySelector("details")?.setAttribute("open", "");
      for (const line of coupled) details.append(make("p", "", line));
      if (known.headings && (known.coupled || []).length) details.append(coupledTable(known));
    }
    legend();
    draw();
  }

  function coupledTable({ coupled, headings }) {
    const { t } = main, list = make("table"), head = make("tr");
    for (const name of ["token", "rollout", "position", ...(headings || [])]) head.append(make("th", "", name));
    list.append(head);
    for (const { index, numbers } of coupled) {
      const row = make("tr"), go = make("button", "th-go", t.texts[t.kinds[index]]), name = make("td");
      go.title = "Go to this token";
      go.onclick = () => { main.moveTo(index); main.grid.focus(); };
      name.append(go);
      row.append(name, make("td", "", t.rows[t.rowOf[index]]), make("td", "", String(t.positionOf[index])));
      for (const number of numbers) row.append(make("td", "number", signed(number ?? NaN)));
      list.append(row);
    }
    const region = make("div", "th-region");
    region.append(list);
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", "tokens that move the pinned one most");
    return region;
  }

  // --- what the kernel changes

  const repaint = () => { if (stale) return; menus.column.value = model.get("column"); legend(); point(); draw(); };
  const lay = () => {
    if (stale || !main.t) return;
    const kept = main.active;
    for (const pane of drawn()) pane.layOut();
    legend();
    if (kept >= 0) main.moveTo(kept);
    draw();
  };
  const control = stepControl(model, set), report = () => { status.textContent = model.get("message"); };
  const refresh = () => { stale = true; cancelAnimationFrame(reading); reading = requestAnimationFrame(read); };
  const explainSoon = () => { cancelAnimationFrame(explaining); explaining = requestAnimationFrame(explain); };
  const parts = [["places", refresh], ["values", refresh], ["columns", refresh], ["other", refresh], ["choices", refresh],
    ["details", explainSoon], ["busy", () => drawBusy(working, model.get("busy"), () => model.send({ kind: "stop" }))], ["biography", explainSoon], ["coupling", explainSoon], ["step", control.place], ["steps", control.place],
    ["follow", control.place], ["message", report], ["looked", control.answered], ["column", repaint], ["filter", repaint], ["pinned", draw], ["mode", lay]];
  for (const [name, react] of parts) model.on(`change:${name}`, react);
  const resized = new ResizeObserver(() => {
    if (!root.clientWidth) return;
    const before = mode();
    wide = root.clientWidth;
    if (!main.t || stale) return;
    if (before !== mode()) lay();
    else for (const pane of drawn()) pane.resized();
    draw();
  });
  root.prepend(control.bar);
  wide = root.clientWidth;
  read();
  report();
  drawBusy(working, model.get("busy"), () => model.send({ kind: "stop" }));
  resized.observe(root);
  return () => {
    resized.disconnect();
    for (const request of [frame, reading, explaining]) cancelAnimationFrame(request);
    control.close();
    for (const [name, react] of parts) model.off(`change:${name}`, react);
  };
}
export default { render };
