// Draws the explorers that move in a page, by the specs beside their pictures.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".moving")) {
    const spec = JSON.parse(box.querySelector("script").textContent);
    vegaEmbed(box.querySelector(".chart"), spec, { actions: false, renderer: "svg" });
  }
});
