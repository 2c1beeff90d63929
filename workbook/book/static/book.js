// Draws the explorers that move in a page, by the specs beside their pictures, and heatmaps from their saved state.
"use strict";
const ELSEWHERE = "Who moved this token is computed where the chapter runs; here it is known of the token that was pinned.";

const bytesOf = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
const unpacked = text => new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"))).json();

// what the heatmap takes for its kernel's half: the saved state, and of a newly pinned token no more than its row
function savedModel({ state, buffers }) {
  const heard = {};
  for (const [path, data] of buffers) {
    const last = path.pop(), holder = path.reduce((part, key) => part[key], state);
    holder[last] = bytesOf(data);
  }
  const known = { details: state.details, moves: state.moves, pinned: state.pinned };
  Object.assign(state, { groups: [state.group], steps: [], step: -1, other: {}, message: "", busy: {} });
  const say = name => (heard[`change:${name}`] ?? []).forEach(react => react());
  return { get: name => state[name], save_changes() {}, send() {}, off() {},
    on: (event, react) => (heard[event] ??= []).push(react),
    set(name, value) {
      state[name] = value;
      if (name === "pinned") {
        const back = value === known.pinned, lines = value >= 0 && known.details?.tables?.length ? [ELSEWHERE] : [];
        Object.assign(state, back ? known : { details: { lines }, moves: undefined });
        say("details");
      }
      say(name);
    } };
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;  // a wide one scrolls, by keys too
  }
  for (const box of document.querySelectorAll(".tokens")) {
    const model = savedModel(JSON.parse(box.querySelector("script").textContent));
    box.replaceChildren();
    renderHeatmap({ model, el: box });
  }
  for (const box of document.querySelectorAll(".moving")) {
    unpacked(box.querySelector("script").textContent)
      .then(spec => vegaEmbed(box.querySelector(".chart"), spec, { actions: false, renderer: "svg" }));
  }
});
