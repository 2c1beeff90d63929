// Search over the book, which works from a file, too: the index is a script, fetched when the field is first entered.
"use strict";
(() => {
  const field = document.querySelector("#search"), list = document.querySelector("#found");
  const status = document.querySelector("#hits"), MOST = 12;
  let index = null;

  const load = () => index ??= new Promise(done => {
    const script = document.createElement("script"); script.src = "search.js";
    script.onload = () => done(window.bookIndex); document.head.append(script);
  });
  const marked = (text, words) => { // the text around the first word, words in <mark>
    const low = text.toLowerCase(), at = Math.max(0, Math.min(...words.map(word => low.indexOf(word)).filter(k => k >= 0)) - 60);
    const part = (at ? "… " : "") + text.slice(at === Infinity ? 0 : at, (at === Infinity ? 0 : at) + 180);
    const pattern = new RegExp(`(${words.map(word => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
    return part.split(pattern).map((piece, k) => {
      if (k % 2 === 0) return piece;
      const mark = document.createElement("mark"); mark.textContent = piece; return mark;
    });
  };
  const find = async () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean), typed = field.value;
    if (!words.length) { list.hidden = true; list.replaceChildren(); status.textContent = ""; return; }
    const sections = await load();
    if (typed !== field.value) return;
    const score = ({ title, text }) => words.reduce((total, word) => {
      const inTitle = title.toLowerCase().includes(word), times = text.toLowerCase().split(word).length - 1;
      return inTitle || times ? total + 20 * inTitle + Math.min(times, 10) : -Infinity;
    }, 0);
    const hits = sections.map(section => ({ section, points: score(section) })).filter(hit => hit.points > 0);
    hits.sort((a, b) => b.points - a.points);
    list.replaceChildren(...hits.slice(0, MOST).map(({ section }) => {
      const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
      link.href = section.page + (section.id && `#${section.id}`);
      link.textContent = section.title === section.chapter ? section.title : `${section.chapter}: ${section.title}`;
      text.append(...marked(section.text, words)); item.append(link, text);
      return item;
    }));
    list.hidden = false;
    status.textContent = hits.length ? `${hits.length} section${hits.length === 1 ? "" : "s"}`
      + (hits.length > MOST ? `, the best ${MOST} shown` : "") : "Nothing found.";
  };
  field.addEventListener("focus", load, { once: true });
  field.addEventListener("input", find);
  field.form.addEventListener("submit", event => { event.preventDefault(); list.querySelector("a")?.click(); });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape" && field.value) { field.value = ""; find(); field.focus(); }
    if (event.key === "/" && !event.target.closest("input, select, textarea")) { event.preventDefault(); field.focus(); }
  });

  const contents = document.querySelector(".contents details"), wide = matchMedia("(min-width: 72rem)");
  const fold = () => { if (contents) contents.open = wide.matches; };
  wide.addEventListener("change", fold); fold();
  const button = document.querySelector("#fold");
  button?.addEventListener("click", () => {
    const cells = [...document.querySelectorAll("details.code")], open = !cells.some(cell => cell.open);
    for (const cell of cells) cell.open = open;
    button.textContent = open ? "Fold all code" : "Unfold all code";
  });
})();
