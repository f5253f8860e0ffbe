#!/usr/bin/env python3
"""How few measurements a bisection can do with, for docs/benchmarks.md. Run: ./bisections.py [RUNS]; NumPy is needed.

64 commits, a step as large as the scatter, which is normal. The oracle knows both levels and that there is a step. The ideal
one knows the scatter; the levels, the size and whether there is a step it must find out, with the prior of `bisect`, and it
reads what promises most information, as `bisect` does. "Range": five commits around the culprit cannot be measured.
"""

import sys

import numpy as np

NOISE, LEAST, COMMITS, CONFIDENCE, NONE, OPENING, MOST = 0.03, 0.01, 64, 0.95, 0.25, 6, 400
SIZES = np.linspace(-0.2, 0.2, 161)
OVER = np.abs(SIZES) - LEAST
TAILS = 0.7 / 0.06 * np.exp(-np.maximum(OVER, 0) / 0.03) + 0.3 / 0.5 * np.exp(-np.maximum(OVER, 0) / 0.25)
LOG_PRIOR = np.log(np.maximum(np.where(OVER >= 0, TAILS, 0) * (SIZES[1] - SIZES[0]), 1e-300))
VALUES = np.linspace(-0.25, 0.25, 100)


def entropy_like(p):
    return np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0)


def most_information(steps, none, left, right, overall, readable):
    """The place whose reading tells most of whether the step is before it, behind it, or nowhere."""
    scale = NOISE * np.sqrt(2 * np.pi) / (VALUES[1] - VALUES[0])

    def density(levels):
        return np.exp(-((VALUES[None, :] - levels[:, None]) ** 2) / 2 / NOISE**2) / scale

    zero = np.zeros((1, len(VALUES)))
    before = np.vstack([zero, np.cumsum(steps[:, None] * density(right), 0)])
    behind = np.vstack([np.cumsum((steps[:, None] * density(left))[::-1], 0)[::-1], zero])
    nowhere = none * density(np.array([overall]))
    share = np.concatenate([[0], np.cumsum(steps)])
    fates = entropy_like(before).sum(1) + entropy_like(behind).sum(1) + entropy_like(nowhere).sum(1)
    prior = entropy_like(share) + entropy_like(steps.sum() - share) + entropy_like(np.array(none))
    information = fates - prior - entropy_like(before + behind + nowhere).sum(1)
    return int(np.where(readable, information, -1).argmax())


def ideal(seed, is_range):
    random, culprit = np.random.default_rng(seed), seed * 37 % COMMITS
    size = NOISE if seed % 2 == 0 else -NOISE
    count, total = np.zeros(COMMITS + 1), np.zeros(COMMITS + 1)
    low, high = (max(0, culprit - 2), min(COMMITS - 1, culprit + 3)) if is_range else (culprit, culprit)
    readable = np.ones(COMMITS + 1, bool)
    readable[low + 1 : high + 1] = False
    place = 0
    for reading in range(MOST):
        if reading < OPENING:
            place = [0, COMMITS, COMMITS, 0][reading % 4]
        total[place] += random.normal() * NOISE + (size if place > culprit else 0)
        count[place] += 1
        if reading + 1 < OPENING:
            continue
        on_left, sum_left = np.cumsum(count)[:-1], np.cumsum(total)[:-1]
        on_right, overall = count.sum() - on_left, total.sum() / count.sum()
        difference = (total.sum() - sum_left) / on_right - sum_left / on_left
        variance = NOISE**2 * (1 / on_left + 1 / on_right)
        logs = (SIZES[None, :] * difference[:, None] - SIZES[None, :] ** 2 / 2) / variance[:, None] + LOG_PRIOR[None, :]
        most = max(logs.max(), 0)
        weights = np.exp(logs - most)
        steps = (1 - NONE) * weights.sum(1) / COMMITS
        none = NONE * np.exp(-most)
        evidence = np.log(steps.sum() / (1 - NONE)) + most
        steps, none = steps / (steps.sum() + none), none / (steps.sum() + none)
        likeliest = int(steps.argmax())
        in_range = low <= likeliest <= high
        sure = steps[low : high + 1].sum() if in_range else steps[likeliest]
        if sure >= CONFIDENCE and evidence >= -np.log(1 - CONFIDENCE):
            return in_range, reading + 1
        if none >= CONFIDENCE:
            return False, reading + 1
        sizes = (weights * SIZES).sum(1) / weights.sum(1)
        left = overall - on_right / count.sum() * sizes
        place = most_information(steps, none, left, left + sizes, overall, readable)
    return False, MOST


def oracle(seed):
    random, culprit = np.random.default_rng(seed), seed * 37 % COMMITS
    posterior = np.full(COMMITS, 1 / COMMITS)
    for reading in range(1, MOST):
        place = int(np.abs(np.concatenate([[0], np.cumsum(posterior)]) - 0.5).argmin())
        value = random.normal() * NOISE + (NOISE if place > culprit else 0)
        levels = np.where(place > np.arange(COMMITS), NOISE, 0)
        posterior = posterior * np.exp(-((value - levels) ** 2) / 2 / NOISE**2)
        posterior /= posterior.sum()
        if posterior.max() >= CONFIDENCE:
            break
    return posterior.argmax() == culprit, reading


runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
for name, bisect in [("oracle", oracle), ("ideal", lambda seed: ideal(seed, False)), ("ideal, range", lambda seed: ideal(seed, True))]:
    outcomes = [bisect(seed) for seed in range(runs)]
    needed = np.array([reading for _, reading in outcomes])
    right = np.mean([is_right for is_right, _ in outcomes])
    print(f"{name:14} right {right:.2f}, median {np.median(needed):.0f}, p90 {np.percentile(needed, 90):.0f}", flush=True)
