// The slider over a run's recorded steps, and how new ones are asked for. Put before heatmap.js in one module.

const HAND_RESTS = 120, ASK_EVERY = 3000, ANSWER_LOST = 30000;  // ms

// set(name, value) changes a trait; what comes back goes into the page and its clean-up
function stepControl(model, set) {
  const bar = make("div", "th-bar"), box = make("label", "th-steps", "step "), slider = make("input"), where = make("output");
  const look = make("button", "th-look", "Look for new steps"), follow = make("label"), tick = make("input");
  let sliding = 0, held = false, asked = 0;
  Object.assign(slider, { type: "range", min: 0, step: 1 });
  slider.setAttribute("aria-label", "recorded step");
  slider.title = "The recorded step whose rollouts are shown";
  look.title = "Look whether the run has recorded more steps by now";
  follow.title = "Show each new step as soon as it is recorded";
  tick.type = "checkbox";
  box.append(slider, where);
  follow.append(tick, " follow");
  bar.append(box, look, follow);
  bar.hidden = true;

  function place() {  // made once, so that a drag outlives the tables that come meanwhile
    const steps = model.get("steps");
    if (steps.length) bar.hidden = false;  // a run whose tables were removed may get others
    slider.max = Math.max(0, steps.length - 1);
    slider.disabled = steps.length < 2;
    tick.checked = model.get("follow");
    if (!held && !sliding) slider.value = Math.max(0, steps.indexOf(model.get("step")));
    name();
  }

  function name() {
    const steps = model.get("steps"), k = Number(slider.value);
    where.textContent = `${steps[k] ?? "none"}`;
    slider.setAttribute("aria-valuetext", steps.length ? `step ${steps[k]}, ${k + 1} of ${steps.length} recorded` : "none");
  }

  slider.oninput = () => {  // a table is read where the hand rests
    clearTimeout(sliding);
    sliding = setTimeout(() => { sliding = 0; set("step", model.get("steps")[Number(slider.value)]); }, HAND_RESTS);
    name();
  };
  slider.onpointerdown = () => { held = true; };
  slider.onchange = () => { held = false; };
  slider.onkeydown = event => { if (event.key !== "Escape") event.stopPropagation(); };  // the notebook has keys of its own
  const ask = () => { asked = Date.now(); model.send({ kind: "look" }); };
  look.onclick = ask;
  tick.onchange = () => { set("follow", tick.checked); if (tick.checked) ask(); };
  const polling = setInterval(() => {  // one question at a time, unless an answer got lost
    if (model.get("follow") && bar.isConnected && Date.now() - asked > (asked ? ANSWER_LOST : 0)) ask();
  }, ASK_EVERY);
  place();
  return { bar, place, answered: () => { asked = 0; }, close: () => { clearInterval(polling); clearTimeout(sliding); } };
}
