// Random numbers as PyTorch and NumPy draw them, intervals, softmaxes, and Python's number formats: with them the toys
// of chapters 00 to 03 give in a page what they give in a notebook.
"use strict";
const workbook = { toys: {} };

// --- PyTorch's generator on a CPU: mt19937, 53 bits a number, Box-Muller in blocks of 16
class TorchRandom {
  constructor(seed) {
    this.state = new Uint32Array(624); this.state[0] = seed; this.at = 624;
    for (let i = 1; i < 624; i++) {
      const before = this.state[i - 1] ^ (this.state[i - 1] >>> 30);
      this.state[i] = Math.imul(1812433253, before) + i;
    }
  }
  twist() {
    const s = this.state;
    for (let i = 0; i < 624; i++) {
      const y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
      s[i] = s[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.at = 0;
  }
  bits() {
    if (this.at === 624) this.twist();
    let y = this.state[this.at++];
    y ^= y >>> 11; y ^= (y << 7) & 0x9d2c5680; y ^= (y << 15) & 0xefc60000; y ^= y >>> 18;
    return y >>> 0;
  }
  next() { const high = this.bits() & 0x1fffff; return (high * 4294967296 + this.bits()) / 9007199254740992; }
  uniform(n) { const out = new Float64Array(n); for (let i = 0; i < n; i++) out[i] = this.next(); return out; }
  normal(n) { // 16 or more
    const out = this.uniform(n);
    const block = at => {
      for (let j = at; j < at + 8; j++) {
        const radius = Math.sqrt(-2 * Math.log(1 - out[j])), angle = 2 * Math.PI * out[j + 8];
        out[j] = radius * Math.cos(angle); out[j + 8] = radius * Math.sin(angle);
      }
    };
    for (let at = 0; at + 16 <= n; at += 16) block(at);
    if (n % 16) { out.set(this.uniform(16), n - 16); block(n - 16); }
    return out;
  }
  choice(p) { // with replacement, as torch.multinomial draws one of several
    const total = p.reduce((sum, value) => sum + value, 0), drawn = this.next();
    let sum = 0;
    for (let v = 0; v < p.length - 1; v++) { sum += p[v]; if (!(sum / total < drawn)) return v; }
    return p.length - 1;
  }
}

// --- NumPy's generator: SeedSequence and PCG64
class NumpyRandom {
  static streams = new Map();
  static uniform(seed, n) { // the first n numbers of a seed; kept, since sliders ask for them again and again
    const stream = NumpyRandom.streams.get(seed) ?? { random: new NumpyRandom(seed), values: [] };
    NumpyRandom.streams.set(seed, stream);
    while (stream.values.length < n) stream.values.push(stream.random.next());
    return stream.values;
  }
  constructor(seed) {
    const shift = value => (value ^ (value >>> 16)) >>> 0;
    let factor = 0x43b0d7e5;
    const hash = value => { value ^= factor; factor = Math.imul(factor, 0x931e8875);
      return shift(Math.imul(value, factor) >>> 0); };
    const mix = (x, y) => shift((Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) >>> 0);
    const pool = [seed, 0, 0, 0].map(hash);
    for (let from = 0; from < 4; from++) for (let to = 0; to < 4; to++)
      if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
    factor = 0x8b51f9dd;
    const words = Array.from({ length: 8 }, (_, i) => { const value = pool[i % 4] ^ factor;
      factor = Math.imul(factor, 0x58f38ded); return BigInt(shift(Math.imul(value, factor) >>> 0)); });
    const long = i => (words[i + 1] << 32n) | words[i];
    this.step = ((((long(4) << 64n) | long(6)) << 1n) | 1n) & NumpyRandom.ones;
    this.state = 0n; this.advance();
    this.state = (this.state + ((long(0) << 64n) | long(2))) & NumpyRandom.ones; this.advance();
    this.half = null;
  }
  static ones = (1n << 128n) - 1n;
  advance() { this.state = (this.state * 0x2360ed051fc65da44385df649fccf645n + this.step) & NumpyRandom.ones; }
  bits() {
    this.advance();
    const folded = BigInt.asUintN(64, (this.state >> 64n) ^ this.state), turn = this.state >> 122n;
    return BigInt.asUintN(64, (folded >> turn) | (folded << (64n - turn)));
  }
  next() { return Number(this.bits() >> 11n) / 9007199254740992; }
  bits32() {
    if (this.half !== null) { const half = this.half; this.half = null; return half; }
    const both = this.bits(); this.half = Number(both >> 32n); return Number(both & 0xffffffffn);
  }
  below(most) { // an integer from 0 to most
    let mask = most; for (const by of [1, 2, 4, 8, 16]) mask |= mask >>> by;
    for (;;) { const value = this.bits32() & mask; if (value <= most) return value; }
  }
  permute(values) { // in place, as Generator.permuted does row by row
    for (let i = values.length - 1; i > 0; i--) { const j = this.below(i);
      [values[i], values[j]] = [values[j], values[i]]; }
    return values;
  }
}

// --- arithmetic
const range = n => Array.from({ length: n }, (_, i) => i);
const sum = values => { let total = 0; for (const value of values) total += value; return total; };
const mean = values => sum(values) / values.length;
const dot = (a, b) => { let total = 0; for (let i = 0; i < a.length; i++) total += a[i] * b[i]; return total; };
const norm = values => Math.sqrt(dot(values, values));
const scaled = (values, factor) => Array.from(values, value => value * factor);
const added = (a, b) => Array.from(a, (value, i) => value + b[i]);
const logSumExp = z => { const most = Math.max(...z); return most + Math.log(sum(z.map(value => Math.exp(value - most)))); };
const logSoftmax = z => { const total = logSumExp(z); return z.map(value => value - total); };
const softmax = z => logSoftmax(z).map(Math.exp);
const clamped = (value, low, high) => Math.min(Math.max(value, low), high);
const interval = values => { // mean and normal 95 % interval
  const middle = mean(values), squares = values.reduce((total, value) => total + (value - middle) ** 2, 0);
  const half = 1.96 * Math.sqrt(squares / (values.length - 1)) / Math.sqrt(values.length);
  return { mean: middle, low: middle - half, high: middle + half };
};
const groupAdvantages = (rewards, estimator) => { // rewards: one list per group -> the same, of advantages
  const batch = mean(rewards.flat());
  return rewards.map(group => {
    const low = Math.min(...group), high = Math.max(...group), middle = clamped(mean(group), low, high);
    const centred = group.map(reward => reward - middle), others = Math.max(group.length - 1, 1);
    if (estimator === "dr_grpo") return centred;
    if (estimator === "reinforce") return group.map(reward => low === high ? 0 : reward - batch);
    if (estimator === "rloo") return centred.map(value => value * group.length / others);
    const deviation = Math.sqrt(dot(centred, centred) / others), advantages = scaled(centred, 1 / (deviation + 1e-4));
    return estimator === "positive_only" ? advantages.map(value => Math.max(value, 0)) : advantages;
  });
};

// --- numbers as Python writes them
const fixed = (value, digits) => {
  const whole = value * 10 ** digits;
  if (Math.abs(whole % 1) === 0.5 && whole / 10 ** digits === value) // a tie goes to the even digit
    return (2 * Math.round(whole / 2) / 10 ** digits).toFixed(digits);
  return value.toFixed(digits);
};
const signed = (value, digits) => (value < 0 ? "" : "+") + fixed(value, digits);
const percent = (value, digits = 0) => `${fixed(100 * value, digits)}%`;
const typeset = text => text // a true minus, and no sign of what is rounded to zero, as views.style.typeset has it
  .replace(/(?<![\w.])[-+−](?=0(?:\.0+)?(?!\.?\d|e))/g, "").replace(/(?<![\w.,)\]-])-(?=\.?\d)/g, "−");
const scientific = (value, digits) => value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");
