// What is known of a pinned token, as tables with bars by sign, and how far its explanation is. Put before heatmap.js in
// one module; every text goes into the page by textContent.

// a bar from the middle: to the right and blue above 0, to the left and orange below; value: -1 to 1
function signBar(value) {
  const box = make("span", "th-signbar"), bar = make("span");
  const half = 50 * Math.min(1, Math.abs(value ?? 0));
  bar.style.left = `${value < 0 ? 50 - half : 50}%`;
  bar.style.width = `${half}%`;
  bar.style.background = value < 0 ? DOWN : UP;
  box.append(bar);
  box.setAttribute("aria-hidden", "true");  // its number stands beside it
  return box;
}

// table: {title, headings, rows: [{cells: texts or {value}, index: of the token to go to, -1: none}]}
function panelTable({ title, headings, rows }, go) {
  const box = make("div", "th-region"), list = make("table"), head = make("tr"), caption = make("caption", "", title);
  list.append(caption);
  for (const name of headings) head.append(make("th", "", name));
  list.append(head);
  for (const { cells, index } of rows) {
    const row = make("tr");
    cells.forEach((cell, k) => {
      const place = make("td", k && typeof cell === "string" && /^[-+−]?[\d.,]+(e[-+]?\d+)?( %)?$/.test(cell) ? "number" : "");
      if (typeof cell === "object") place.append(signBar(cell.value));
      else if (k === 0 && index >= 0) {
        const button = make("button", "th-go", cell);
        button.title = "Go to this token";
        button.onclick = () => go(index);
        place.append(button);
      } else place.textContent = cell;
      row.append(place);
    });
    list.append(row);
  }
  box.append(list);
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", title);
  return box;
}

// busy: {text, share}, {} for nothing
function drawBusy(place, busy, stop) {
  if (!busy.text) { place.replaceChildren(); return; }
  if (!place.firstChild) {  // made once, so that a hand on Stop finds it
    const bar = make("progress"), button = make("button", "th-stop", "Stop");
    bar.max = 1;
    bar.setAttribute("aria-label", "how far the explanation is");
    button.onclick = stop;
    place.append(bar, button, make("span"));
  }
  place.querySelector("progress").value = busy.share || 0;
  place.lastChild.textContent = busy.text;
}
