// Two contexts in one softmax layer (chapter 01), as workbook.topics.softmax.toy computes them.
"use strict";
(() => {
  const WORDS = ["so", "now"], CONTEXTS = ["A", "B"], SOURCES = ["first order", "closed form", "real SGD step"];
  const READS = { "another word": 3, "the word that A reads": 2, "the word that A says": 0 }, GRID = 10;
  const VOCABULARY = 32;
  const embeddings = new Map(); // of a seed and a width

  function distribution(p, token, vocabulary, rivalry) {
    const share = rivalry + (1 - rivalry) / (vocabulary - 1), row = new Array(vocabulary).fill(0);
    row.fill((1 - p) * (1 - share) / (vocabulary - 2));
    row[1 - token] = (1 - p) * share; row[token] = p;
    return row;
  }
  function unitRows(vocabulary, width, seed) {
    const key = `${vocabulary} ${width} ${seed}`;
    if (!embeddings.has(key)) {
      const values = new TorchRandom(seed).normal(vocabulary * width);
      embeddings.set(key, range(vocabulary).map(v => {
        const row = Array.from(values.slice(v * width, (v + 1) * width)); return scaled(row, 1 / norm(row)); }));
    }
    return embeddings.get(key);
  }
  function makePair({ p_a, p_b, angle, length_a = 1, length_b = 1, same, rivalry = 0, vocabulary = VOCABULARY,
    temperature = 1, width = 2 }) {
    const tokens = [0, same ? 0 : 1], turn = angle * Math.PI / 180, rest = new Array(width - 2).fill(0);
    const directions = [[1, 0, ...rest], [Math.cos(turn), Math.sin(turn), ...rest]];
    const ends = directions.map((h, i) => scaled(h, [length_a, length_b][i]));
    const logits = [p_a, p_b].map((p, i) =>
      logSoftmax(distribution(p, tokens[i], vocabulary, rivalry).map(q => Math.log(q) / temperature)));
    const scores = logits.map((row, i) => row.map((logp, v) => (v === tokens[i]) - Math.exp(logp)));
    return { tokens, ends, hidden: ends.map(h => scaled(h, 1 / temperature)), logits, scores };
  }
  const coupling = (pair, i, j) => dot(pair.hidden[i], pair.hidden[j]) * dot(pair.scores[i], pair.scores[j]);

  function realStep(pair, advantages, lr) { // of W, whose logits are W h + c
    const output = unitRows(VOCABULARY, 2, 0), { ends, logits, scores, tokens } = pair;
    const after = output.map((row, v) => row.map((w, d) =>
      w + lr * sum(range(2).map(j => advantages[j] * scores[j][v] * ends[j][d]))));
    return range(2).map(i => {
      const offsets = logits[i].map((logp, v) => logp - dot(output[v], ends[i]));
      return logSoftmax(after.map((row, v) => dot(row, ends[i]) + offsets[v]))[tokens[i]] - logits[i][tokens[i]];
    });
  }
  function closedForm(pair, advantages, lr) {
    return range(2).map(i => {
      const shift = pair.logits[i].map((logp, v) => logp + lr * sum(range(2).map(j =>
        advantages[j] * pair.scores[j][v] * dot(pair.hidden[j], pair.hidden[i]))));
      return logSoftmax(shift)[pair.tokens[i]] - pair.logits[i][pair.tokens[i]];
    });
  }

  workbook.toys.explore_pair = {
    compute(settings) {
      const pair = makePair(settings), { lr } = settings, advantages = [settings.advantage_a, settings.advantage_b];
      const first = range(2).map(i => lr * sum(range(2).map(j => advantages[j] * coupling(pair, i, j))));
      const deltas = [first, closedForm(pair, advantages, lr), realStep(pair, advantages, lr)];
      const names = CONTEXTS.map((context, i) => `${context}'s “${WORDS[pair.tokens[i]]}”`);
      const products = pair.scores[0].map((score, v) => score * pair.scores[1][v]);
      return {
        moves: range(2).flatMap(i => SOURCES.map((source, k) =>
          ({ row: `${CONTEXTS[i]}, ${source}`, token: names[i], source, dlogp: deltas[k][i] }))),
        kernel: range(2).flatMap(i => range(2).map(j =>
          ({ moved: CONTEXTS[i], by: `step on ${CONTEXTS[j]}`, K: coupling(pair, i, j) }))),
        vectors: CONTEXTS.map((context, i) => ({ context, x: pair.ends[i][0], y: pair.ends[i][1] })),
        coordinates: [`“${WORDS[0]}”`, `“${WORDS[1]}”`, "all other words"].map((word, k) =>
          ({ word, product: k < 2 ? products[k] : sum(products.slice(2)) })),
      };
    },
    describe({ moves, kernel }) {
      const tokens = [...new Set(moves.map(row => row.token))];
      const move = (token, source) => moves.findLast(row => row.token === token && row.source === source).dlogp;
      const steps = tokens.map(token => `${token} moves by ${signed(move(token, SOURCES[2]), 3)} nats ` +
        `(first order ${signed(move(token, SOURCES[0]), 3)})`);
      return `${steps.join("; ")}. K of the pair is ${signed(kernel[1].K, 3)}.`;
    },
  };

  workbook.toys.explore_map = {
    compute({ p_a, p_b, same, angle, temperature, vocabulary, rivalry }) {
      const pair = makePair({ p_a, p_b, same, angle, temperature, vocabulary, rivalry });
      const rest = distribution(0.5, 0, vocabulary, rivalry).slice(1).map(p => p ** (1 / temperature));
      const share = rest[0] / sum(rest), rival = (share * (vocabulary - 1) - 1) / (vocabulary - 2);
      const p = range(GRID).map(k => (k + 0.5) / GRID), turn = dot(pair.hidden[0], pair.hidden[1]);
      const score = (p, token) => distribution(p, token, vocabulary, rival).map((q, v) => (v === token) - q);
      const mine = p.map(one => score(one, 0)), others = [0, 1].map(token => p.map(one => score(one, token)));
      const map = range(GRID).flatMap(i => [0, 1].flatMap(token => range(GRID).map(j => ({
        p_a: p[i], p_b: p[j], K: turn * dot(mine[i], others[token][j]), token: token ? "different" : "same" }))));
      const [a, b] = range(2).map(i => Math.exp(pair.logits[i][pair.tokens[i]]));
      const here = { p_a: a, p_b: b, token: same ? "same" : "different", K: coupling(pair, 0, 1), rival: share };
      return { map, here: [here] };
    },
    describe({ map, here: [now] }) {
      const most = rows => Math.max(...rows.map(row => Math.abs(row.K))), largest = most(map);
      const large = map.filter(row => Math.abs(row.K) > largest / 2);
      const unsure = largest > 0 ? mean(large.map(row => Number(Math.max(row.p_a, row.p_b) < 0.5))) : 0;
      const peak = most(map.filter(row => row.token === "same"));
      const other = peak > 0 ? most(map.filter(row => row.token !== "same")) / peak : 0;
      return `Here p is ${fixed(now.p_a, 2)} and ${fixed(now.p_b, 2)}, K is ${signed(now.K, 3)}, and the rival has ` +
        `${percent(now.rival, 1)} of the rest. On the whole map: of the cells above half the largest |K|, ` +
        `${percent(unsure)} have both tokens unsure; different tokens reach ${percent(other)} of the same token's ` +
        "largest |K|.";
    },
  };

  const TRAINED = { output: "output layer only, the proxy", untied: "embeddings too, untied",
    tied: "embeddings too, tied" };
  const PARTS = ["output × output", "input × input", "input × output"];

  function reflected(start, end, vector) { // the reflection that maps start to end, of a vector
    const axis = start.map((value, d) => value - end[d]), size = dot(axis, axis);
    return size > 1e-24 ? vector.map((value, d) => value - 2 * axis[d] * dot(axis, vector) / size) : vector;
  }
  workbook.toys.explore_tied = {
    compute(settings) {
      const width = 16, lr = 1e-5, words = unitRows(VOCABULARY, width, settings.seed);
      const { tokens, ends, logits, scores } = makePair({ ...settings, width }), reads = [2, READS[settings.b_reads]];
      const mapped = (i, vector) => reflected(words[reads[i]], ends[i], vector); // its own transpose
      const atInput = scores.map((score, i) =>
        mapped(i, range(width).map(d => sum(words.map((row, v) => score[v] * row[d])))));
      const crossed = (i, j) => scores[i][reads[j]] * dot(ends[i], atInput[j]);
      const parts = [dot(ends[0], ends[1]) * dot(scores[0], scores[1]),
        reads[0] === reads[1] ? dot(atInput[0], atInput[1]) : 0, crossed(1, 0) + crossed(0, 1)];
      const offsets = logits[1].map((logp, v) => logp - dot(words[v], ends[1]));
      const moved = trained => { // of B's token, in a real step on A's
        const output = words.map((row, v) => added(row, scaled(ends[0], lr * scores[0][v])));
        const input = trained === "tied" ? output : words.map(row => [...row]);
        if (trained !== "output") input[reads[0]] = added(input[reads[0]], scaled(atInput[0], lr));
        const hidden = mapped(1, input[reads[1]]);
        const after = logSoftmax(output.map((row, v) => dot(row, hidden) + offsets[v]));
        return (after[tokens[1]] - logits[1][tokens[1]]) / lr;
      };
      return {
        parts: Object.values(TRAINED).flatMap((trained, k) =>
          PARTS.slice(0, k + 1).map((part, m) => ({ trained, part, K: parts[m] }))),
        real: Object.entries(TRAINED).map(([name, trained]) => ({ trained, moved: moved(name) })),
      };
    },
    describe({ real }) {
      const moves = real.map(row => `${row.trained}: ${signed(row.moved, 3)}`).join("; ");
      return `What a step on A does to B's token, in nats per unit of learning rate, by what is trained: ${moves}.`;
    },
  };
})();
