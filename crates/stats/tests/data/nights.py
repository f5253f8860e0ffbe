#!/usr/bin/env python3
"""Makes nights.json, which tests/all/golden.rs holds what bisections and nights need against. Run here: ./nights.py

Made with SciPy 1.17. False discovery rates are SciPy's. For `steps` it is the same posterior by another road: levels and scales of the noise on grids five times as fine and much wider than the
crate's, which lays its own around the readings, every placement of none, one or two steps written out, densities by
scipy.stats.t. The crate's coarser grid may be off by some per cent.
"""

import itertools
import json

import numpy as np
from scipy import stats

rng = np.random.default_rng(20261127)
STEP_MIN, NONE, SEVERAL = 0.01, 0.3, 0.1


def posterior(readings, weights):
    places = len(weights) + 1
    weights = np.array(weights) / sum(weights)
    values = np.array([value for _, value in readings])
    spread = values.std()
    cell = min(STEP_MIN, spread) / 5
    levels = np.arange(values.min() - spread, values.max() + spread, cell)
    # The distribution of a step's size: beyond the least, exponential tails of two lengths.
    over = np.abs(levels[:, None] - levels[None, :]) - STEP_MIN
    jump = sum(
        share * cell / (2 * length) * np.exp(-np.maximum(over, 0) / length) for share, length in [(0.7, 0.03), (0.3, 0.25)]
    ) * (over >= -cell / 2)
    pairs = list(itertools.combinations(range(len(weights)), 2))
    pair_sum = sum(weights[k] * weights[l] for k, l in pairs)
    none, several, steps, total = 0.0, 0.0, np.zeros(len(weights)), 0.0
    for degrees in (3, 11):
        for scale in np.geomspace(spread / 20, spread * 3, 80):
            seen = np.ones((places, len(levels)))
            for place, value in readings:
                seen[place] *= stats.t.pdf((value - levels) / scale, degrees) / scale
            before = lambda k: seen[: k + 1].prod(axis=0)
            mass = NONE * seen.prod(axis=0).sum()
            none += mass
            total += mass
            for k in range(len(weights)):
                mass = (1 - NONE - SEVERAL) * weights[k] * (before(k) @ jump @ seen[k + 1 :].prod(axis=0))
                steps[k] += mass
                total += mass
            for k, l in pairs:
                middle, last = seen[k + 1 : l + 1].prod(axis=0), seen[l + 1 :].prod(axis=0)
                mass = SEVERAL * weights[k] * weights[l] / pair_sum * (((before(k) @ jump) * middle) @ jump @ last)
                several += mass
                steps[k] += mass
                steps[l] += mass
                total += mass
    return {"none": none / total, "several": several / total, "steps": list(steps / total)}


def case(levels, rounds, noise, weights):
    readings = [
        [place, round(level + noise * float(rng.normal()), 6)] for _ in range(rounds) for place, level in enumerate(levels)
    ]
    return {"readings": readings, "weights": weights, **posterior(readings, weights)}


cases = [
    case([0, 0, 0, 0.03, 0.03], 6, 0.03, [1, 1, 1, 1]),
    case([0, 0, 0.03, 0.03, 0.03, 0.03], 5, 0.02, [1, 1, 1, 4, 1]),
    case([0, 0, 0, 0], 9, 0.02, [1, 1, 1]),
    case([0, 0.05, 0.05, 0.0, 0.0], 8, 0.02, [1, 2, 1, 1]),
    case([1.0, 1.0, 1.0, 0.97], 7, 0.015, [1, 1, 1]),
    case([0, 0.02, 0.02, 0.05, 0.05], 8, 0.015, [1, 1, 1, 1]),
]
p_values = [
    [0.01, 0.04, 0.03, 0.005], [0.2, 0.2, 0.9], [0.03], [0, 1, 0.5], [1e-300, 1e-20, 0.049, 0.05, 0.051], [0.01] * 6,
    [round(float(p), 6) for p in rng.uniform(size=25) ** 3],
]
rates = [{"p": p, "adjusted": list(stats.false_discovery_control(p, method="bh"))} for p in p_values]

with open("nights.json", "w") as file:
    lines = [f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, cases)) + "\n]" for name, cases in (("steps", cases), ("false_discovery", rates))]
    file.write("{\n" + ",\n".join(lines) + "\n}\n")
