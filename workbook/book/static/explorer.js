// The explorers of a page: controls over a toy's compute(), its chart, its sentence, and the call as code.
"use strict";
(() => {
  const waiting = new IntersectionObserver(seen => { for (const one of seen)
    if (one.isIntersecting) { waiting.unobserve(one.target); start(one.target); } }, { rootMargin: "400px" });

  const read = control => control.type === "checkbox" ? control.checked
    : control.tagName === "SELECT" ? JSON.parse(control.value)
    : "log" in control.dataset ? Number((10 ** Number(control.value)).toPrecision(2)) : Number(control.value);
  const shown = (control, value) => "log" in control.dataset ? String(value)
    : value.toFixed((control.step.split(".")[1] ?? "").length);
  const python = (value, whole) => value === true ? "True" : value === false ? "False"
    : typeof value === "string" ? `'${value}'` // as Python writes a text without a quote in it
    : Number.isInteger(value) && !whole ? `${value}.0` : String(Number(value.toPrecision(6)));

  async function start(box) {
    const { spec, module, compute, whole } = JSON.parse(box.querySelector("script").textContent);
    const toy = workbook.toys[box.dataset.toy], controls = [...box.querySelectorAll("[name]")];
    const [sentence, code, chart] = [".sentence", "pre", ".chart"].map(part => box.querySelector(part));
    let drawn = 0, asked = 0, view = null;

    const settings = () => Object.fromEntries(controls.map(control => [control.name, read(control)]));
    const update = async () => {
      const now = settings(), mine = ++asked;
      for (const control of controls) {
        const readout = control.parentElement.querySelector("output");
        if (readout) { readout.textContent = shown(control, now[control.name]);
          control.setAttribute("aria-valuetext", readout.textContent); }
      }
      try {
        box.tables = toy.compute(now);
      } catch (error) { // two controls may not go together; the chart stays as it was
        sentence.textContent = error.message; box.classList.add("refused");
        return;
      }
      box.classList.remove("refused");
      sentence.textContent = typeset(toy.describe(box.tables));
      const values = Object.entries(now).map(([name, value]) => `${name}=${python(value, whole.includes(name))}`);
      code.textContent = `from ${module} import ${compute}\n\n${compute}(${values.join(", ")})`;
      if (!view) return;
      for (const [name, rows] of Object.entries(box.tables)) view.data(name, structuredClone(rows));
      await view.runAsync();
      if (mine === asked) box.dataset.drawn = String(++drawn);
    };
    let frame = 0; // one redraw a frame, however many moves
    const moved = () => { frame ||= requestAnimationFrame(() => { frame = 0; update(); }); };
    box.addEventListener("input", moved);
    box.querySelector("form").addEventListener("reset", () => setTimeout(moved));
    box.querySelector(".copy").addEventListener("click", () => copy(code.textContent, box.querySelector(".copied")));

    await update();
    const options = { renderer: "svg", actions: false, ast: false };
    const full = { autosize: { type: "pad", resize: true }, ...spec,
      datasets: { ...spec.datasets, ...structuredClone(box.tables ?? {}) } };
    const place = document.createElement("div");
    ({ view } = await vegaEmbed(place, full, options));
    place.querySelector("svg").setAttribute("aria-hidden", "true"); // the box around it has its description
    chart.replaceChildren(place);
    box.view = view;
    await update();
  }

  async function copy(text, status) {
    try { await navigator.clipboard.writeText(text); }
    catch { const area = document.createElement("textarea"); area.value = text; document.body.append(area);
      area.select(); document.execCommand("copy"); area.remove(); }
    status.textContent = "copied"; setTimeout(() => { status.textContent = ""; }, 1500);
  }

  for (const box of document.querySelectorAll(".explorer")) waiting.observe(box);
})();
