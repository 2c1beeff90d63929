// Toy groups of rollouts of three words (chapters 00 and 02), as workbook.topics.groups computes them.
"use strict";
(() => {
  const WORDS = { style: ["so", "then", "thus", "hence", "now", "well"], template: ["is", "makes"],
    result: ["7", "4", "1"] };
  const CLASSES = Object.keys(WORDS), GROUPS = 256, SIDES = ["A > 0", "A < 0"];
  const COMPARED = ["grpo", "dr_grpo", "rloo", "reinforce", "positive_only"];
  const SHARED = "“so”, in A and in B", ONLY_A = "“7”, in A only", ONLY_B = "“4”, in B only";

  const pushes = (tokens, advantages, p) => // a row per rollout: A (e - p)
    tokens.map((token, i) => p.map((q, v) => advantages[i] * ((v === token) - q)));
  const total = (rows, width) => range(width).map(v => sum(rows.map(row => row[v])));

  workbook.toys.explore_gradients_meet = {
    compute({ advantage_a, advantage_b, p_shared }) {
      const advantages = [advantage_a, advantage_b];
      const first = pushes([0, 0], advantages, [p_shared, 1 - p_shared]);
      const second = pushes([0, 1], advantages, [0.4, 0.4, 0.2]);
      const table = [[SHARED, first, 0], [ONLY_A, second, 0], [ONLY_B, second, 1]].flatMap(([token, rows, v]) => {
        const [a, b] = rows.map(row => row[v]);
        return [["from A", a], ["from B", b], ["net", a + b]].map(([source, push]) => ({ token, source, push }));
      });
      return { table };
    },
    describe({ table }) {
      const net = token => table.find(row => row.token === token && row.source === "net").push;
      const still = Math.abs(net(SHARED)) < 1e-9 ? "stands still" : `moves by ${signed(net(SHARED), 2)}`;
      return `The shared token ${still}; “7” moves by ${signed(net(ONLY_A), 2)}, “4” by ${signed(net(ONLY_B), 2)}.`;
    },
  };

  function makePolicy(groups, { p_right = 0.5, spread = 0, styles = 3 } = {}) {
    const free = range(styles).map(k => 1 / (k + 1));
    return {
      style: range(groups).map(() => scaled(free, 1 / sum(free))),
      template: range(groups).map(() => [0.98, 1 - 0.98]),
      result: range(groups).map(n => {
        const right = clamped(p_right + spread * (-1 + 2 * (n % 4) / 3), 0.02, 0.98);
        return [right, (1 - right) * 2 / 3, (1 - right) / 3];
      }),
    };
  }
  function drawGroups(policy, size, { temperature = 1, noise = 0, seed = 0 } = {}) {
    const groups = policy.style.length, chance = NumpyRandom.uniform(seed, 4 * groups * size), tokens = {};
    CLASSES.forEach((name, k) => {
      tokens[name] = policy[name].map((p, n) => {
        const q = p.map(value => value ** (1 / temperature)), whole = sum(q), steps = [];
        q.slice(0, -1).reduce((so_far, value) => { steps.push(so_far + value / whole); return steps.at(-1); }, 0);
        return range(size).map(i => steps.filter(step => chance[(k * groups + n) * size + i] > step).length);
      });
    });
    const rewards = tokens.result.map((words, n) => words.map((word, i) =>
      Number((word === 0) !== (chance[(3 * groups + n) * size + i] < noise))));
    return { tokens, policy, rewards };
  }
  const netPush = ({ tokens, policy }, name, advantages, weights) => policy[name].map((p, n) => {
    const scale = weights ? advantages[n].map((value, i) => value * weights[n][i]) : advantages[n];
    return total(pushes(tokens[name][n], scale, p), p.length);
  });
  const moved = (net, size) => net.map(row => sum(row.map(Math.abs)) / 2 / size);
  const renamed = ({ mean, low, high }, name) => ({ [name]: mean, low, high });

  workbook.toys.explore_growing = {
    compute({ so_far, group_size, estimator, p_right, draw }) {
      const groups = drawGroups(makePolicy(8, { p_right }), group_size, { seed: draw });
      const advantages = groupAdvantages(groups.rewards, estimator)[0], path = [];
      for (const name of CLASSES) {
        const p = groups.policy[name][0], rows = pushes(groups.tokens[name][0], advantages, p);
        for (let v = 0; v < p.length; v++) {
          let push = 0;
          const row = (rollouts, push) => ({ class: name, word: WORDS[name][v], rollouts, push,
            seen: rollouts <= so_far });
          path.push(row(0, 0));
          rows.forEach((one, i) => { push += one[v]; path.push(row(i + 1, push / group_size)); });
        }
      }
      const rollouts = range(group_size).map(i => ({
        rollout: i + 1, text: CLASSES.map(name => WORDS[name][groups.tokens[name][0][i]]).join(" "),
        reward: groups.rewards[0][i], advantage: advantages[i],
        sign: advantages[i] > 0 ? "+" : advantages[i] < 0 ? "−" : "0", seen: i < so_far,
      }));
      const now = Math.min(so_far, group_size);
      const bars = path.filter(row => row.rollouts === now).map(({ seen, ...row }) => row);
      return { bars, path, rollouts };
    },
    describe({ bars, rollouts }) {
      const seen = rollouts.filter(row => row.seen), n = rollouts.length;
      if (new Set(rollouts.map(row => row.reward)).size === 1 && rollouts.every(row => row.advantage === 0))
        return `All ${n} rewards of this draw are equal, so every advantage is 0 and nothing is pushed.`;
      if (!seen.length) return "No rollout yet: nothing is pushed.";
      const push = word => signed(bars.find(row => row.word === word).push, 3);
      const net = ["so", "is", "7"].map(word => `“${word}” ${push(word)}`).join(", "), last = seen.at(-1);
      const count = seen.length === n ? "all" : `${seen.length} of ${n}`;
      return `Rollout ${last.rollout} says “${last.text}”: reward ${fixed(last.reward, 0)}, advantage ` +
        `${signed(last.advantage, 2)}. Net push after ${count}: ${net}.`;
    },
  };

  workbook.toys.explore_estimators = {
    compute({ group_size, p_right, spread, styles, temperature }) {
      const groups = drawGroups(makePolicy(GROUPS, { p_right, spread, styles }), group_size, { temperature });
      const table = COMPARED.flatMap(estimator => {
        const advantages = groupAdvantages(groups.rewards, estimator);
        const sizes = CLASSES.map(name => moved(netPush(groups, name, advantages), group_size));
        const whole = sum(sizes.map(mean));
        return CLASSES.map((name, k) => ({ estimator, class: name, ...renamed(interval(sizes[k]), "moved"),
          share: whole ? mean(sizes[k]) / whole : 0 }));
      });
      return { table };
    },
    describe({ table }) {
      const size = (estimator, name) => table.find(row => row.estimator === estimator && row.class === name).moved;
      const ratios = COMPARED.map(name =>
        `${name} ${fixed(size(name, "style") / Math.max(size(name, "result"), 1e-12), 2)}`);
      return `Opening moved per unit of result: ${ratios.join(", ")}.`;
    },
  };

  function rates({ tokens, policy }, advantages, name) { // by side and group: how often each word occurs, NaN if never
    return [1, -1].map(sign => policy[name].map((p, n) => {
      const side = advantages[n].map(value => Math.max(sign * value, 0)), whole = sum(side);
      return p.map((_, v) => sum(side.filter((_, i) => tokens[name][n][i] === v)) / whole);
    }));
  }
  function matchFrequencies(groups, advantages, name) {
    const [plus, minus] = rates(groups, advantages, name).map(side => side.map(row => row.map(f => f || 0)));
    return groups.tokens[name].map((words, n) => words.map((word, i) => {
      const own = advantages[n][i] > 0 ? plus[n][word] : minus[n][word];
      return Math.min(plus[n][word], minus[n][word]) / Math.max(own, 1e-12);
    }));
  }
  function assignSigns(advantages, signs) {
    if (signs === "all positive") return advantages.map(group => group.map(Math.abs));
    if (signs !== "shuffled") return advantages;
    const random = new NumpyRandom(0);
    return advantages.map(group => random.permute([...group]));
  }
  const known = values => { const kept = values.filter(value => !Number.isNaN(value));
    return kept.length ? mean(kept) : null; };

  workbook.toys.explore_intervention = {
    compute({ signs, matched, group_size, temperature, noise }) {
      if (matched && signs === "all positive")
        throw new Error("Frequencies are matched between positive and negative rollouts; here all are positive.");
      const groups = drawGroups(makePolicy(GROUPS), group_size, { temperature, noise });
      const before = groupAdvantages(groups.rewards, "grpo"), after = assignSigns(before, signs);
      const tables = { rates: [], net: [], sizes: [] };
      for (const name of CLASSES) {
        const weights = matched ? matchFrequencies(groups, after, name) : null;
        const push = netPush(groups, name, after, weights), original = netPush(groups, name, before);
        tables.sizes.push({ class: name, ...renamed(interval(moved(push, group_size)), "moved"),
          before: mean(moved(original, group_size)) });
        let sides = rates(groups, after, name);
        if (matched) sides = [0, 0].map(() => sides[0].map((row, n) => row.map((f, v) => Math.min(f, sides[1][n][v]))));
        WORDS[name].slice(0, groups.policy[name][0].length).forEach((word, v) => {
          const net = interval(push.map(row => row[v] / group_size));
          tables.net.push({ class: name, word, ...renamed(net, "push") });
          SIDES.forEach((side, k) => tables.rates.push({ class: name, word, side, rate: known(sides[k].map(row => row[v])) }));
        });
      }
      return tables;
    },
    describe({ sizes }) {
      const parts = sizes.map(row => `${row.class} ${fixed(row.moved, 3)} (before ${fixed(row.before, 3)})`);
      return `Moved per rollout: ${parts.join(", ")}.`;
    },
  };

  // signal, bias and noise in expectation, as workbook.topics.groups.expected computes them
  const LENGTHS = [3, 4, 5, 6, 7, 8], WRONG = { "1/length, wrong twice as long": 2 };
  const PARTS = [["signal (credit)", 0], ["signal, by coupling", 3], ["bias", 1], ["noise, by coupling", 5],
    ["noise (chance)", 2]];
  const times = (matrix, v) => matrix.map(row => dot(row, v));
  const zeros = n => range(n).map(() => Array(n).fill(0));

  function toyWords(temperature, weights) {
    const policy = makePolicy(1), drawn = {}, words = {};
    for (const name of CLASSES) {
      const q = policy[name][0].map(p => p ** (1 / temperature));
      drawn[name] = scaled(q, 1 / sum(q));
    }
    const inverse = drawn.style.map((_, k) => weights === "equal" ? 1 : 1 / LENGTHS[k]);
    const factor = [1 / (WRONG[weights] ?? 1), 1];
    for (const name of CLASSES) {
      const p = policy[name][0], square = inverse.map(value => value ** 2);
      const moment = values => name === "style" ? values : p.map(() => dot(drawn.style, values));
      words[name] = { p, drawn: drawn[name],
        chance: p.map((_, v) => name === "result" ? Number(v === 0) : drawn.result[0]),
        weight: factor.map(f => scaled(moment(inverse), f)), square: factor.map(f => scaled(moment(square), f * f)) };
    }
    return words;
  }
  function byReward({ p, drawn, chance, weight, square }, reward) { // mean and covariance of w (e - p)
    const joint = drawn.map((q, v) => q * (reward ? chance[v] : 1 - chance[v])), whole = Math.max(sum(joint), 1e-300);
    const row = v => p.map((q, u) => (u === v) - q), mean = Array(p.length).fill(0), spread = zeros(p.length);
    joint.forEach((value, v) => row(v).forEach((x, i, all) => {
      mean[i] += value / whole * weight[reward][v] * x;
      all.forEach((y, j) => { spread[i][j] += value / whole * square[reward][v] * x * y; });
    }));
    return { mean, spread: spread.map((line, i) => line.map((value, j) => value - mean[i] * mean[j])) };
  }
  function pushMoments(word, size, estimator) {
    const rewards = [0, 1].map(reward => byReward(word, reward)), chance = dot(word.drawn, word.chance);
    const groups = range(size + 1).map(k => range(size).map(i => Number(i < k))); // k right rollouts
    const advantages = groupAdvantages(groups, estimator).map(row => [row.at(-1), row[0]]);
    let ways = 1;
    const terms = groups.map((_, k) => {
      if (k) ways = ways * (size - k + 1) / k;
      const counts = [size - k, k], a = advantages[k];
      return { odds: ways * chance ** k * (1 - chance) ** (size - k),
        given: word.p.map((_, v) => (counts[0] * a[0] * rewards[0].mean[v] + counts[1] * a[1] * rewards[1].mean[v]) / size),
        scales: counts.map((count, r) => count * a[r] ** 2 / size ** 2) };
    });
    const mean = word.p.map((_, v) => sum(terms.map(({ odds, given }) => odds * given[v])));
    const covariance = word.p.map((_, i) => word.p.map((_, j) => sum(terms.map(({ odds, given, scales }) => odds *
      ((given[i] - mean[i]) * (given[j] - mean[j]) +
        scales[0] * rewards[0].spread[i][j] + scales[1] * rewards[1].spread[i][j])))));
    return { mean, covariance };
  }
  const ideal = ({ p, chance }) => { const value = dot(p, chance); return p.map((q, v) => q * (chance[v] - value)); };
  function classParts(name, word, { mean, covariance }, scale, prompts, cosine) {
    const signal = scaled(ideal(word), scale), rest = mean.map((value, v) => value - signal[v]), n = mean.length;
    const turns = range(prompts).map(k => range(n).map(v => name === "result" ? ((v - k) % n + n) % n : v));
    const at = (values, turn) => turn.map(v => values[v]), parts = Array(6).fill(0);
    const square = (matrix, turn) => turn.map(i => turn.map(j => matrix[i][j]));
    const inner = (a, b) => sum(a.map((row, i) => dot(row, b[i])));
    turns.forEach((turn, k) => {
      const others = turns.filter((_, m) => m !== k), p = at(word.p, turn);
      const coupled = values => others.reduce((all, o) => added(all, scaled(at(values, o), cosine)), Array(n).fill(0));
      const pushes = [at(signal, turn), at(rest, turn), coupled(signal), coupled(rest)];
      const fisher = p.map((x, i) => p.map((y, j) => (i === j) * x - x * y));
      const along = times(fisher, pushes.reduce(added)), [own, bias, fromOthers, otherBias] = pushes.map(v => dot(v, along));
      const noise = cosine ** 2 * sum(others.map(o => inner(fisher, square(covariance, o))));
      [own, bias, inner(fisher, square(covariance, turn)), fromOthers, otherBias, noise].forEach((value, i) => {
        parts[i] += value / prompts; });
    });
    return parts;
  }

  workbook.toys.explore_parts = {
    compute({ group_size, estimator, prompts, cosine, temperature, weights }) {
      const words = toyWords(temperature, weights), known = {};
      for (const name of CLASSES) known[name] = pushMoments(words[name], group_size, estimator);
      const scale = sum(CLASSES.map(name => dot(known[name].mean, ideal(words[name])))) /
        sum(CLASSES.map(name => dot(ideal(words[name]), ideal(words[name]))));
      const rows = CLASSES.map(name => [name, classParts(name, words[name], known[name], scale, prompts, cosine)]);
      rows.push(["all", rows.map(([, parts]) => parts).reduce(added)]);
      const rms = rows.map(([, parts]) => Math.sqrt(sum(parts))), largest = Math.max(...rms);
      const table = PARTS.flatMap(([part, place], order) => rows.map(([category, parts], i) => ({
        category, change_rms: rms[i], tokens: prompts * group_size, size: rms[i] / largest, part,
        share: (parts[place] + (part === "bias" ? parts[4] : 0)) / sum(parts), order,
      })).filter((_, i) => rms[i] > 0.01 * largest));
      return { table };
    },
    describe({ table }) {
      return ["all", "style"].map(name => {
        const share = part => table.find(row => row.category === name && row.part === part).share;
        const [signal, coupled, bias, chance, noise] = PARTS.map(([part]) => share(part));
        return `${name[0].toUpperCase()}${name.slice(1)}: ${percent(signal + coupled)} signal (${percent(coupled)} by ` +
          `coupling), ${percent(bias)} bias, ${percent(noise + chance)} noise (${percent(chance)} by coupling).`;
      }).join(" ");
    },
  };
})();
