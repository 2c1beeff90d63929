// Groups that share a token, and the drift of a push that did not cancel (chapter 03), as workbook.topics.exchange
// computes them.
"use strict";
(() => {
  const GROUPS = 200, LONGEST = 48, WIDTH = 16, noises = new Map();
  const TRANSFORMS = ["none", "min-replace", "advantage-orthogonal"];

  function noise(size) { // all that is random, once for all settings
    if (!noises.has(size)) {
      const random = new TorchRandom(0), n = GROUPS * size;
      const drawn = { reward: random.uniform(n), rollout: random.normal(2 * n), shared: random.normal(GROUPS),
        direction: random.normal(n * WIDTH), chance: random.uniform(n), token: random.normal(n * LONGEST) };
      drawn.direction = range(n).map(i => { const row = drawn.direction.subarray(i * WIDTH, (i + 1) * WIDTH);
        return scaled(row, 1 / norm(row)); });
      noises.set(size, drawn);
    }
    return noises.get(size);
  }
  function drawGroups({ drift, length_spread, follows_reward, group_size: size = 8, right = 0.5 }) {
    const drawn = noise(size), n = GROUPS * size, own = Math.sqrt(1 - follows_reward ** 2), half = Math.sqrt(0.5);
    const rewards = range(GROUPS).map(g =>
      range(size).map(i => i < 2 ? 1 - i : Number(drawn.reward[g * size + i] < right)));
    const advantages = groupAdvantages(rewards, "grpo").flat(), logRatios = new Float64Array(n * LONGEST);
    const lengths = new Int32Array(n);
    for (let i = 0; i < n; i++) {
      const reward = follows_reward * Math.sign(advantages[i]), whole = half * (own * drawn.rollout[i] + reward);
      for (let t = 0; t < LONGEST; t++)
        logRatios[i * LONGEST + t] = drift * (whole + half * drawn.token[i * LONGEST + t]);
      logRatios[i * LONGEST] = drift * drawn.shared[Math.floor(i / size)];
      lengths[i] = clamped(Math.round(16 * Math.exp(length_spread * (own * drawn.rollout[n + i] - reward))), 2, LONGEST);
    }
    return { size, n, advantages, logRatios, lengths, drawn };
  }
  // weights of the first tokens of each rollout, by column: the shared one, then its own; null where it is masked
  function sharedWeights(draw, { level = "token", clipping = null, clip_range, per_length = false, masking = false,
    masked_share = 0, columns = 1 }) {
    const { n, lengths, logRatios, advantages, drawn } = draw;
    const weights = range(columns).map(() => new Array(n));
    for (let i = 0; i < n; i++) {
      const masked = masking && drawn.chance[i] < masked_share, length = lengths[i] - masked;
      let sequence = 0;
      if (level === "sequence") {
        for (let t = masked ? 1 : 0; t < lengths[i]; t++) sequence += logRatios[i * LONGEST + t];
        sequence /= Math.max(length, 1);
      }
      for (let t = 0; t < columns; t++) {
        const ratio = Math.exp(level === "sequence" ? sequence : logRatios[i * LONGEST + t]);
        const both = clipping === "symmetric", stopped = clipping !== null &&
          ((ratio < 1 - clip_range && (both || advantages[i] < 0)) ||
            (ratio > 1 + clip_range && (both || advantages[i] > 0)));
        const alone = masked && t === 0;
        weights[t][i] = alone ? null : stopped ? 0 : ratio / (n * (per_length ? Math.max(length, 1) : LONGEST));
      }
    }
    return weights;
  }
  const ofGroup = (draw, g) => range(draw.size).map(i => g * draw.size + i);
  function transformed(name, columns, draw) { // then rounding becomes 0, and so does what is masked
    const out = columns.map(weights => {
      const after = weights.map(value => value ?? 0);
      for (let g = 0; g < GROUPS && name !== "none"; g++) {
        const alive = ofGroup(draw, g).filter(i => weights[i] !== null);
        if (name === "min-replace") {
          const least = Math.min(...alive.map(i => weights[i])); alive.forEach(i => { after[i] = least; });
        } else {
          const most = Math.max(...alive.map(i => Math.abs(draw.advantages[i]))) || 1;
          const direction = alive.map(i => draw.advantages[i] / most);
          const overlap = dot(alive.map(i => weights[i]), direction) / Math.max(dot(direction, direction), 1);
          alive.forEach((i, k) => { after[i] = weights[i] - overlap * direction[k]; });
        }
      }
      return after;
    });
    const most = out.reduce((most, column) => column.reduce((m, w) => Math.max(m, Math.abs(w)), most), 0);
    return out.map(column => column.map(weight => Math.abs(weight) <= 1e-12 * most ? 0 : weight));
  }
  function directionsAt(draw, angle) {
    const cosine = Math.cos(angle * Math.PI / 180), common = Math.sqrt(cosine), rest = Math.sqrt(1 - cosine);
    return draw.drawn.direction.map(row => [common, ...scaled(row, rest)]);
  }
  const summed = rows => rows.reduce((total, row) => added(total, row));
  function residuals(draw, { transform, angle, own_embeddings = false, ...switches }) {
    const [weights] = transformed(transform, sharedWeights(draw, switches), draw);
    const directions = own_embeddings ? directionsAt(draw, angle) : null; // null: all are the same
    const values = range(GROUPS).map(g => {
      const rows = ofGroup(draw, g), pushes = rows.map(i => weights[i] * draw.advantages[i]);
      const vectors = directions && rows.map((i, k) => scaled(directions[i], pushes[k]));
      const total = directions ? sum(vectors.map(norm)) : sum(pushes.map(Math.abs));
      const net = directions ? norm(summed(vectors)) : Math.abs(sum(pushes));
      return total > 0 ? Math.min(net / total, 1) : 0;
    });
    return { values, weights, directions };
  }

  const MECHANISMS = { "token ratio": {}, "sequence ratio": { level: "sequence" },
    "symmetric clipping": { clipping: "symmetric" }, "asymmetric clipping": { clipping: "asymmetric" },
    "1/T per sequence": { per_length: true }, "own embeddings": { own_embeddings: true },
    "position masking": { masking: true } };
  const TOGETHER = "switched on, together";

  function pushesOf(draw, weights, directions) { // of the first group, along its net push, as shares of their size
    const rows = ofGroup(draw, 0), size = rows.map(i => weights[i] * draw.advantages[i]);
    const pushes = rows.map((i, k) => scaled(directions ? directions[i] : [1], size[k]));
    let net = summed(pushes);
    const total = sum(pushes.map(norm));
    if (norm(net) <= 1e-9 * total) net = net.map((_, d) => Number(d === 0));
    const sign = net[0] >= 0 ? 1 : -1, along = pushes.map(push => dot(push, net) / norm(net) * sign / (total || 1));
    const names = rows.map((i, k) => ({ rollout: String(k + 1), push: along[k],
      reward: draw.advantages[i] > 0 ? "right" : "wrong" }));
    return [...names, { rollout: "net", push: sum(along), reward: "net" }];
  }
  workbook.toys.explore_exchange = {
    compute({ sequence, clipping, per_length, own_embeddings, masking, transform, ...strengths }) {
      const draw = drawGroups(strengths), { clip_range, angle, masked_share } = strengths;
      const on = { own_embeddings, masking, per_length, level: sequence ? "sequence" : "token",
        clipping: clipping === "none" ? null : clipping };
      let last;
      const meter = Object.entries({ ...MECHANISMS, [TOGETHER]: on }).map(([mechanism, switches]) => {
        last = residuals(draw, { transform, clip_range, angle, masked_share, ...switches });
        const silent = mean(range(GROUPS).map(g => Number(ofGroup(draw, g).every(i => last.weights[i] === 0))));
        const keys = Object.keys(switches), active = keys.every(key => on[key] === switches[key]);
        return { mechanism, ...interval(last.values), silent, on: active && (keys.length > 0 || !sequence),
          drift: strengths.drift };
      });
      return { meter, pushes: pushesOf(draw, last.weights, last.directions) };
    },
    describe({ meter }) {
      const last = meter.at(-1);
      const silent = last.silent > 0.005 ? ` In ${percent(last.silent)} of groups nothing pushes it at all.` : "";
      if (last.mean < 1e-9) return `Switched on together: the shared token cancels.${silent}`;
      return `Switched on together: a residual of ${fixed(last.mean, 3)} [${fixed(last.low, 3)}, ` +
        `${fixed(last.high, 3)}] on the shared token.${silent}`;
    },
  };

  const KEPT = ["right answers' own: push kept", "wrong answers' own: push kept"];
  const SHARES = ["shared token: residual", "own tokens pushed the wrong way", "groups silenced"];
  workbook.toys.explore_transforms = {
    compute({ level, clipping, clip_range, per_length, ...settings }) {
      const draw = drawGroups(settings), groups = range(GROUPS).map(g => ofGroup(draw, g));
      const columns = sharedWeights(draw, { level, clipping: clipping === "none" ? null : clipping, clip_range,
        per_length, columns: 2 });
      const size = draw.advantages.map(Math.abs), up = draw.advantages.map(value => value > 0);
      const pushOf = (weights, rows, side) => sum(rows.filter(i => up[i] === side).map(i => weights[i] * size[i]));
      const plain = [true, false].map(side => mean(groups.map(rows => pushOf(columns[1], rows, side))));
      const table = TRANSFORMS.flatMap(transform => {
        const [shared, own] = transformed(transform, columns, draw);
        const kept = k => groups.map(rows => pushOf(own, rows, k === 0) / Math.max(plain[k], 1e-12));
        const measures = {
          [SHARES[0]]: groups.map(rows => {
            const pushes = rows.map(i => shared[i] * draw.advantages[i]), total = sum(pushes.map(Math.abs));
            return total > 0 ? Math.min(Math.abs(sum(pushes)) / total, 1) : 0; }),
          [KEPT[0]]: kept(0),
          [KEPT[1]]: kept(1),
          [SHARES[1]]: groups.map(rows => mean(rows.map(i => Number(own[i] < 0)))),
          [SHARES[2]]: groups.map(rows => Number(rows.every(i => own[i] === 0))),
        };
        return Object.entries(measures).map(([measure, values]) => ({ measure, transform, ...interval(values) }));
      });
      return { table };
    },
    describe({ table }) {
      const of = (transform, measure) =>
        table.find(row => row.transform === transform && row.measure === measure).mean;
      return `Min-replace keeps ${percent(of("min-replace", KEPT[0]))} of the right answers' push and ` +
        `${percent(of("min-replace", KEPT[1]))} of the wrong ones', and silences ` +
        `${percent(of("min-replace", SHARES[2]))} of groups. Advantage-orthogonal keeps ` +
        `${percent(of("advantage-orthogonal", KEPT[0]))} and ${percent(of("advantage-orthogonal", KEPT[1]))}, and ` +
        `pushes ${percent(of("advantage-orthogonal", SHARES[1]), 1)} of own tokens against their advantage.`;
    },
  };

  // --- drift
  const VOCABULARY = 8, STEPS = 40, RATES = range(17).map(k => 10 ** ((k - 12) / 4)), DRAWS = 64;
  const PATHS = ["from the first policy", "the steps' own, added"], LEAST = 1e-16;

  function klExact(logits, step) {
    const logp = logSoftmax(logits), after = logSoftmax(added(logits, step));
    return Math.max(sum(after.map((value, v) => Math.exp(value) * (value - logp[v]))), 0);
  }
  function klQuadratic(logits, step) {
    const p = softmax(logits), middle = dot(p, step);
    return 0.5 * sum(p.map((q, v) => q * (step[v] - middle) ** 2));
  }
  workbook.toys.explore_kl_drift = {
    compute({ residual, p_shared, lr, same_sign }) {
      const rest = range(VOCABULARY - 1).map(k => 0.5 ** k);
      const p = [p_shared, ...scaled(rest, (1 - p_shared) / sum(rest))], logits = p.map(Math.log);
      const push = p.map((q, v) => residual * ((v === 0) - q));
      const oneStep = rates => {
        const exact = rates.map(rate => klExact(logits, scaled(push, rate)));
        const quadratic = rates.map(rate => klQuadratic(logits, scaled(push, rate)));
        const difference = exact.map((value, k) => Math.abs(value - quadratic[k]));
        return Object.entries({ exact, quadratic, difference }).flatMap(([order, values]) =>
          values.map((kl, k) => ({ lr: rates[k], order, kl: Math.max(kl, LEAST) })));
      };
      const usual = new TorchRandom(0).uniform(STEPS * DRAWS), totals = new Array(DRAWS).fill(0), path = [];
      let now = range(DRAWS).map(() => logits);
      for (let step = 0; step < STEPS; step++) {
        now = now.map((z, draw) => {
          const size = lr * residual * (usual[step * DRAWS + draw] < same_sign ? 1 : -1);
          const move = softmax(z).map((q, v) => size * ((v === 0) - q));
          totals[draw] += klExact(z, move);
          return added(z, move);
        });
        const away = now.map(z => klExact(logits, z.map((value, v) => value - logits[v])));
        [away, totals].forEach((values, k) => path.push({ step: step + 1, series: PATHS[k],
          ...interval(values.map(value => Math.max(value, LEAST))) }));
      }
      return { rates: oneStep(RATES), chosen: oneStep([lr]), path };
    },
    describe({ chosen, path }) {
      const kl = Object.fromEntries(chosen.map(row => [row.order, row.kl]));
      if (kl.exact < 1e-14) return "No more than rounding remains of the push: the policy stays where it is.";
      const end = path.findLast(row => row.series === PATHS[0]).mean;
      return `One step: ${scientific(kl.exact, 2)} nats; the quadratic form says ${fixed(kl.quadratic / kl.exact, 3)} ` +
        `of that. After ${STEPS} steps the policy is ${scientific(end, 2)} nats away.`;
    },
  };

  const START = [0.3, 0.15, 0.05, 0.5], SEEDS = 48, RUNS = ["your settings", "equal weights"];
  function transformGroup(weights, transform, advantages) {
    if (transform === "min-replace") return weights.map(() => Math.min(...weights));
    if (transform === "none") return weights;
    const most = Math.max(...advantages.map(Math.abs)) || 1, direction = scaled(advantages, 1 / most);
    const overlap = dot(weights, direction) / Math.max(dot(direction, direction), 1);
    return weights.map((weight, i) => weight - overlap * direction[i]);
  }
  function runSolutions({ weights, transform, operator, strength, lr, group_size }) {
    const random = new TorchRandom(0), path = [range(SEEDS).map(() => START.map(Math.log))];
    for (let step = 0; step < STEPS; step++) {
      const now = path.at(-1), drawn = now.map(z => { const p = softmax(z); return range(group_size).map(() => random.choice(p)); });
      const chance = random.normal(SEEDS * group_size);
      path.push(now.map((z, s) => {
        const rewards = drawn[s].map(output => Number(output < 3)), [advantages] = groupAdvantages([rewards], "dr_grpo");
        const w = transformGroup(drawn[s].map((output, i) => weights === "random"
          ? Math.exp(strength * chance[s * group_size + i])
          : 1 + (weights === "one favoured" ? strength : 0) * (output === 0)), transform, advantages);
        const pushes = START.map((_, y) => sum(drawn[s].map((output, i) =>
          output === y ? w[i] * advantages[i] / group_size : 0)));
        const p = softmax(z), whole = sum(pushes);
        return z.map((value, y) => value + lr * (operator === "natural gradient"
          ? (pushes[y] === 0 ? 0 : pushes[y] / p[y]) : pushes[y] - p[y] * whole));
      }));
    }
    return path.map(step => step.map(logSoftmax));
  }
  const MEASURES = {
    entropy: right => { const q = logSoftmax(right); return -sum(q.map(value => Math.exp(value) * value)); },
    "log-odds": (right, first) => (right[0] - first[0]) - (right[1] - first[1]),
    reward: right => Math.exp(logSumExp(right)),
  };
  workbook.toys.explore_solutions = {
    compute(settings) {
      const strength = settings.weights === "equal" ? 0 : settings.strength;
      const equal = { ...settings, weights: "equal", transform: "none", strength: 0 };
      const table = [{ ...settings, strength }, equal].flatMap((run, k) => {
        const path = runSolutions(run).map(step => step.map(logps => logps.slice(0, 3)));
        return Object.entries(MEASURES).flatMap(([measure, of]) => path.map((step, t) => ({ measure, run: RUNS[k],
          step: t, ...interval(step.map((right, s) => of(right, path[0][s]))) })));
      });
      return { table };
    },
    describe({ table }) {
      const end = (measure, k) => table.findLast(row => row.measure === measure && row.run === RUNS[k]).mean;
      return `After ${STEPS} steps: entropy ${fixed(end("entropy", 0), 2)} (equal weights ` +
        `${fixed(end("entropy", 1), 2)}), log-odds moved by ${signed(end("log-odds", 0), 2)} ` +
        `(${signed(end("log-odds", 1), 2)}), reward ${fixed(end("reward", 0), 2)} (${fixed(end("reward", 1), 2)}).`;
    },
  };
})();
