// A group's tokens as they came over the wire, and the colours of their values. Nothing here touches the page, but for
// `make`. Put first in one module, behind PALETTE: {diverging, sequential, categories: {fills, inks}}.

const MEANINGS = { "▲": "clipped above", "▼": "clipped below", "■": "masked" }, PLUS = "⁺", MINUS = "⁻";

const make = (tag, className = "", text = "") => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
};
const bytes = view => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
const floats = view => view && view.byteLength ? new Float32Array(bytes(view)) : new Float32Array();
const whole = view => view && view.byteLength ? new Int32Array(bytes(view)) : new Int32Array();
const size = x => x !== 0 && (x < 1e-3 || x >= 1e6) ? x.toExponential(2) : Number(x.toPrecision(4)).toString();
const unsigned = x => x === null || Number.isNaN(x) ? "unknown" : (x < 0 ? "−" : "") + size(Math.abs(x));
const signed = x => (x > 0 ? "+" : "") + unsigned(x);

// data: {shape, columns, values, places} -> what the panes draw from; token i is the i-th row of the group's table
function decode(data) {
  const { shape, columns } = data, places = whole(data.places), n = shape.tokens;
  const [kinds, rowOf, positionOf] = [0, 1, 2].map(k => places.subarray(k * n, (k + 1) * n));
  const at = new Int32Array(shape.rows.length * shape.positions).fill(-1);
  for (let i = 0; i < n; i++) at[rowOf[i] * shape.positions + positionOf[i]] = i;
  return { ...shape, columns, stop: columns.find(c => c.marks), kinds, rowOf, positionOf, at, values: floats(data.values), coupling: new Float32Array() };
}
const answer = (t, row) => Array.from(t.at.subarray(row * t.positions, (row + 1) * t.positions)).filter(i => i >= 0);
const columnOf = (t, name) => t.columns.find(c => c.name === name) || { name, missing: true };
const valueOf = (t, i, c) => c.missing ? NaN : c.slot < 0 ? t.coupling[i] ?? NaN : t.values[c.slot * t.tokens + i];
const text = (c, value) => c.levels ? c.levels[value] ?? "unknown" : c.center || c.side ? unsigned(value) : signed(value);
const shown = (t, i, c) => text(c, valueOf(t, i, c));
const markOf = (t, i) => t.stop ? t.stop.marks[valueOf(t, i, t.stop)] || "" : "";

// the scale that two columns share: the wider of two of one kind; null where their kinds differ
function common(one, other) {
  if (one.levels || other.levels || one.missing || other.missing) return null;
  if ((one.center || 0) !== (other.center || 0) || (one.side || 0) !== (other.side || 0)) return null;
  return one.limit >= other.limit ? one : other;
}
const ends = c => c.side ? [Math.min(0, c.side * c.limit), Math.max(0, c.side * c.limit)] : [(c.center || 0) - c.limit, (c.center || 0) + c.limit];

// fill, ink and sign of a value; no fill where it is unknown
function colours(value, column, scale) {
  if (Number.isNaN(value) || column.missing) return ["", "", ""];
  if (column.levels) {
    const { fills, inks } = PALETTE.categories;
    return [fills[value % fills.length], inks[value % fills.length], ""];
  }
  const { fills, inks } = PALETTE[scale.side ? "sequential" : "diverging"], off = value - (scale.center || 0);
  const place = scale.side ? off / scale.limit * scale.side : (off / scale.limit + 1) / 2;
  const shade = Math.floor(Math.max(0, Math.min(1, place)) * (fills.length - 1) + 0.5);
  return [fills[shade], inks[shade], scale.side ? "" : off > 0 ? PLUS : off < 0 ? MINUS : ""];
}

// a legend's parts: a bar with its ends, ≤ and ≥ where values lie beyond them, or a chip for each level
function drawLegend(place, column, scale, t) {
  if (column.levels) {
    const { fills, inks } = PALETTE.categories;
    column.levels.forEach((level, k) => {
      const chip = make("span", "th-chip", level);
      chip.style.background = fills[k % fills.length];
      chip.style.color = inks[k % fills.length];
      place.append(chip);
    });
    return;
  }
  const { fills } = PALETTE[scale.side ? "sequential" : "diverging"], bar = make("span", "th-scale");
  bar.style.background = `linear-gradient(90deg, ${(scale.side < 0 ? [...fills].reverse() : fills).join(", ")})`;
  const [low, high] = ends(scale);
  let under = "", over = "";
  for (let i = 0; i < t.tokens; i++) {
    const value = valueOf(t, i, column);
    if (value < low) under = "≤ ";
    if (value > high) over = "≥ ";
  }
  place.append(make("span", "", under + text(scale, low)), bar, make("span", "", over + text(scale, high)));
}
