#!/usr/bin/env python3
"""Makes scipy.json, the values that tests/all/golden.rs and the tests inside src hold the crate against. Run here: ./golden.py

Made with SciPy 1.17.1 and mpmath 1.3 (Student's t: SciPy's own is off in the 9th digit at t = 1e-8). Where no package gives the value there is an independent slow computation here and the entry says
so: E-divisive (R's `ecp` is not packaged here) straight from the definition of the paper with all sums written out, the
bootstrap by SciPy's own BCa code over resamples drawn by a second implementation of the generator.
"""

import itertools
import json
import math

import mpmath
import numpy as np
from scipy import stats
from scipy._lib._array_api import array_namespace
from scipy.stats import _resampling

MASK = 2**64 - 1
rng = np.random.default_rng(20240501)


class Xoshiro:
    """xoshiro256++ seeded by SplitMix64, from the papers' pseudocode."""

    def __init__(self, seed):
        self.s = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & MASK
            z = seed
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            self.s.append(z ^ (z >> 31))

    @staticmethod
    def rotl(x, k):
        return ((x << k) | (x >> (64 - k))) & MASK

    def next(self):
        s = self.s
        result = (self.rotl((s[0] + s[3]) & MASK, 23) + s[0]) & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = self.rotl(s[3], 45)
        return result

    def below(self, n):
        while True:
            m = self.next() * n
            if (m & MASK) >= (2**64 % n):
                return m >> 64


def random_cases():
    cases = []
    for seed in (0, 1, 42, MASK):
        r = Xoshiro(seed)
        cases.append({"seed": seed, "next": [r.next() for _ in range(6)], "below_10": [r.below(10) for _ in range(20)]})
    return cases


def signed_rank_cases():
    """Exact, with ties and zeros: every sign counted, here and by SciPy's permutation method with all 2^n."""
    samples = [
        [1, 1, 2, -2, 3, 4], [0, 0, 1, -1, 2, 3, 3], [5, 5, 5, 5, 5, 5], [1, -1], [-3], [2, 2, -2, -2, 0],
        [round(x, 1) for x in rng.normal(0.3, 1, 14)], [0.1, 0.1, 0.1, -0.1, 0.2, 0.2, 0.3, 0.3, 0.3, 0.4, -0.5, 0.6],
        [1e-300, -1e300, 1e-300, 2.0], list(map(float, range(1, 15))),
    ]
    cases = []
    for x in samples:
        method = stats.PermutationMethod(n_resamples=2**20)
        nonzero = np.array([v for v in x if v != 0], dtype=float)
        w, p = brute_signed_rank(nonzero)
        if len(nonzero) > 1:
            scipy_p = stats.wilcoxon(nonzero, method=method).pvalue
            assert abs(p - scipy_p) < 1e-12, (x, p, scipy_p)
        cases.append({"diffs": list(map(float, x)), "w_plus": w, "p_value": p})
    return cases


def brute_signed_rank(x):
    ranks = stats.rankdata(abs(x))
    observed = ranks[x > 0].sum()
    sums = np.array([sum(r for r, s in zip(ranks, signs) if s) for signs in itertools.product((0, 1), repeat=len(x))])
    return float(observed), float(min(1.0, 2 * min((sums <= observed + 1e-9).mean(), (sums >= observed - 1e-9).mean())))


def mann_whitney_cases():
    """Exact with ties: every deal of the pooled values counted, here and by SciPy."""
    pairs = [
        ([1, 2, 2, 3], [2, 3, 3, 4, 5]), ([1, 1, 1], [1, 1, 1]), ([1], [1]), ([0, 0, 0, 1], [0, 1, 1, 1]), ([1, 1, 2], [2]),
        ([round(x, 1) for x in rng.normal(0, 1, 9)], [round(x, 1) for x in rng.normal(0.7, 1, 7)]),
        ([5, 5, 5, 9], [1, 5, 5, 2, 3, 4, 5, 1]),
    ]
    cases = []
    for a, b in pairs:
        u, p = brute_mann_whitney(a, b)
        if min(len(a), len(b)) > 1:
            scipy = stats.mannwhitneyu(b, a, method=stats.PermutationMethod(n_resamples=10**6))
            assert abs(scipy.pvalue - p) < 1e-12 and scipy.statistic == u, (a, b)
        cases.append({"a": list(map(float, a)), "b": list(map(float, b)), "u": u, "p_value": p})
    return cases


def brute_mann_whitney(a, b):
    ranks = stats.rankdata(a + b)
    sums = np.array([sum(deal) for deal in itertools.combinations(ranks, len(b))])
    observed = ranks[len(a):].sum()
    p = min(1.0, 2 * min((sums <= observed + 1e-9).mean(), (sums >= observed - 1e-9).mean()))
    return float(observed - len(b) * (len(b) + 1) / 2), float(p)


def student_cases():
    central = [
        {"t": t, "df": df, "p": exact_t(t, df)}
        for df in (1, 2, 3.77, 9, 30, 100, 399, 399.5, 400, 401, 1e4, 1e6)
        for t in (0.0, 1e-8, 0.3, 1.0, 2.0, 6.0, 30.0)
    ] + [{"t": t, "df": df, "p": exact_t(t, df)} for t, df in ((1e3, 10), (1e5, 3), (1e10, 1), (60, 60))]
    quantile = [
        {"p": p, "df": df, "t": float(stats.t.isf(p / 2, df))}
        for df in (1, 2, 4.73, 10, 100, 500, 1e5) for p in (1e-12, 1e-4, 0.01, 0.05, 0.5, 0.99, 0.999999)
    ]
    noncentral = []
    for df in (1, 2, 4.7, 9, 50, 1000, 1e6):
        for t in (0.5, 2.0, 4.0, 12.0):
            for shift in (0.0, 0.01, 1.0, 3.0, 8.0):
                noncentral.append({"t": t, "df": df, "shift": shift, "p": slow_noncentral(t, df, shift)})
    return {"central": central, "quantile": quantile, "noncentral": noncentral}


def exact_t(t, df):
    with mpmath.workdps(60):
        t, df = mpmath.mpf(t), mpmath.mpf(df)
        return float(mpmath.betainc(df / 2, mpmath.mpf(1) / 2, 0, df / (df + t * t), regularized=True))


def slow_noncentral(t, df, shift):
    """By adaptive integration over the chi density: SciPy's own nct gives NaN for many degrees of freedom."""
    from scipy import integrate, special

    log_norm = math.log(2) + df / 2 * math.log(df / 2) - special.gammaln(df / 2)

    def f(s):
        if s <= 0:
            return 0.0
        density = math.exp(log_norm + (df - 1) * math.log(s) - df * s * s / 2)
        return density * (stats.norm.sf(t * s - shift) + stats.norm.cdf(-t * s - shift))

    w = 15 / math.sqrt(2 * df)
    turn = shift / t
    cuts = sorted({max(0.0, 1 - w), min(max(turn, max(0.0, 1 - w)), 1 + w), 1.0, 1 + w})
    return float(sum(integrate.quad(f, a, b, epsabs=1e-14, epsrel=1e-12, limit=500)[0] for a, b in zip(cuts, cuts[1:])))


def normal_cases():
    return [{"z": z, "upper": float(stats.norm.sf(z))} for z in (-8.0, -1.0, 0.0, 1e-9, 0.5, 1.0, 1.96, 3.0, 6.0, 10.0, 20.0, 37.0)]


def binomial_cases():
    """P(B < low) at the crate's answer is at most the tail and P(B < low + 1) above it; the oracle is the quantile."""
    cases = []
    for count in (1, 2, 10, 100, 10**4, 10**6, 10**8, 10**10):
        for chance in (0.5, 0.01, 0.999, 1e-6):
            for tail in (0.4, 0.025, 1e-6, 1e-15):
                cases.append({"count": count, "chance": chance, "tail": tail, "rank": int(stats.binom.ppf(tail, count, chance))})
    return cases


def bootstrap_cases():
    """SciPy's BCa over the resamples that the crate's generator draws."""
    samples = {
        "exponential": rng.exponential(1, 25).round(6), "ties": np.array([1.0, 1, 2, 2, 2, 3, 9]), "two": np.array([1.0, 4.0]),
        "normal": rng.normal(10, 2, 60).round(6), "outlier": np.array([1.0, 1.1, 0.9, 1.05, 0.95, 50.0]),
    }
    functions = {"mean": np.mean, "median": np.median, "max": np.max, "sd": lambda x, axis=-1: np.std(x, axis=axis, ddof=1)}
    cases = []
    for (name, x), (statistic, f) in itertools.product(samples.items(), functions.items()):
        r, resamples, confidence, seed = Xoshiro(7), 499, 0.95, 7
        theta = np.array([f(np.array([x[r.below(len(x))] for _ in x])) for _ in range(resamples)])
        alpha = (1 - confidence) / 2
        with np.errstate(all="ignore"):
            low, high, _ = _resampling._bca_interval((x,), lambda s, axis=-1: f(s, axis=axis), -1, alpha, theta, None, array_namespace(x))
        if not (np.isfinite(low) and np.isfinite(high)):
            continue
        ends = [float(np.percentile(theta, 100 * q)) for q in (float(low), float(high))]
        cases.append({"sample": list(map(float, x)), "statistic": statistic, "resamples": resamples, "confidence": confidence,
                      "seed": seed, "value": float(f(x)), "low": min(ends), "high": max(ends), "name": name})
    return cases


def energy(x, y):
    m, n = len(x), len(y)
    between = sum(abs(a - b) for a in x for b in y)
    left = sum(abs(a - b) for a, b in itertools.combinations(x, 2))
    right = sum(abs(a - b) for a, b in itertools.combinations(y, 2))
    return m * n / (m + n) * (2 * between / (m * n) - left / math.comb(m, 2) - right / math.comb(n, 2))


def best_division(x, least):
    best = (0.0, None)
    for tau in range(least, len(x) - least + 1):
        for kappa in range(tau + least, len(x) + 1):
            q = energy(x[:tau], x[tau:kappa])
            if q > best[0] * (1 + 1e-9):
                best = (q, tau)
    return best


def change_point_cases():
    """The first division, from the definition (equations 5 to 8 of Matteson & James 2014), no code shared."""
    series = [
        [0.0] * 6 + [1.0] * 6, list(rng.normal(0, 1, 10).round(4)) + list(rng.normal(4, 1, 10).round(4)),
        list(rng.normal(0, 1, 8).round(4)) + list(rng.normal(5, 1, 6).round(4)) + list(rng.normal(0, 1, 8).round(4)),
        list(rng.normal(0, 0.2, 12).round(4)) + list(rng.normal(0, 5, 12).round(4)), [1.0, 1, 2, 1, 1, 2, 5, 6, 5, 6, 5],
        list(rng.normal(0, 1, 18).round(4)),
    ]
    cases = []
    for x in series:
        for least in (2, 4):
            q, at = best_division(x, least)
            cases.append({"series": list(map(float, x)), "segment_min": least, "at": at, "q": q})
    return cases


def crossing_cases():
    """Stopping chances by the multivariate normal distribution function (Genz), no recursion."""
    cases = []
    for information, bounds, drift in (
        ([10.0, 20.0], [2.5, 2.0], 0.0), ([1.0, 2.0, 3.0], [2.3, 2.2, 2.1], 1.1), ([5.0, 6.0, 40.0], [3.0, 2.5, 1.98], 0.4),
        ([0.5, 1.0], [1.0, 1.0], -2.0),
    ):
        i = np.array(information)
        mean = drift * np.sqrt(i)
        cov = np.sqrt(np.minimum.outer(i, i) / np.maximum.outer(i, i))
        inside = [1.0]
        for k in range(1, len(i) + 1):
            b = np.array(bounds[:k])
            inside.append(float(stats.multivariate_normal.cdf(b, mean[:k], cov[:k, :k], lower_limit=-b, abseps=1e-9, releps=1e-9, maxpts=10**7)))
        cases.append({"information": information, "bounds": bounds, "drift": drift, "chances": [a - b for a, b in zip(inside, inside[1:])]})
    return cases


def sequential_cases():
    """Bounds by Simpson's rule on a fine fixed grid, more precise in the early looks than rpact's 1e-10 in probability."""
    from scipy import integrate, optimize

    def spent(spending, alpha, t):
        if spending == "asOF":
            return 4 * stats.norm.sf(stats.norm.isf(alpha / 4) / math.sqrt(t))
        return alpha * math.log(1 + (math.e - 1) * t)

    cases = []
    for information in ([1.0], [0.5, 1.0], [0.2, 0.4, 0.6, 0.8, 1.0], [0.3, 0.35, 0.9, 1.0], [0.05, 0.99, 1.0]):
        for alpha in (0.05, 0.01):
            for spending in ("asOF", "asP"):
                bounds, grid, density, before, used = [], None, None, 0.0, 0.0
                for t in information:
                    step, target = t - before, (spent(spending, alpha, t) - used) / 2

                    def above(b):
                        if grid is None:
                            return stats.norm.sf(b / math.sqrt(step))
                        return integrate.simpson(density * stats.norm.sf((b - grid) / math.sqrt(step)), x=grid)

                    b = optimize.brentq(lambda b: math.log(max(above(b), 1e-300) / target), 0, 30 * math.sqrt(t), xtol=1e-13)
                    bounds.append(b / math.sqrt(t))
                    new = np.linspace(-b, b, 2401)
                    if grid is None:
                        density = stats.norm.pdf(new, scale=math.sqrt(step))
                    else:
                        kernel = stats.norm.pdf(new[:, None] - grid[None, :], scale=math.sqrt(step))
                        density = integrate.simpson(kernel * density, x=grid, axis=1)
                    grid, before, used = new, t, spent(spending, alpha, t)
                cases.append({"information": information, "alpha": alpha, "spending": spending, "bounds": bounds})
    return cases


def slope_cases():
    """Theil and Sen; some values of x stand for several points each, as numbers of series do."""
    rng = np.random.default_rng(20261127)
    cases = []
    for sizes, confidence in (([1] * 9, 0.95), ([1] * 25, 0.9), ([8, 8, 8, 8], 0.95), ([6, 9, 7], 0.99)):
        x = [10.0**place for place, size in enumerate(sizes) for _ in range(size)] if len(sizes) < 9 else list(map(float, range(len(sizes))))
        y = [round(float(0.5 * value + 3 * noise), 3) for value, noise in zip(x, rng.standard_t(2, len(x)))]
        found = stats.theilslopes(y, x, alpha=confidence)
        cases.append({"x": x, "y": y, "confidence": confidence, "slope": found.slope, "low": found.low_slope, "high": found.high_slope})
    return cases


result = {
    "random": random_cases(), "signed_rank": signed_rank_cases(), "mann_whitney": mann_whitney_cases(), "student": student_cases(),
    "normal": normal_cases(), "binomial": binomial_cases(), "bootstrap": bootstrap_cases(), "change_points": change_point_cases(),
    "crossing": crossing_cases(), "sequential": sequential_cases(), "slopes": slope_cases(),
}
with open("scipy.json", "w") as file:
    json.dump(result, file, separators=(",", ":"), allow_nan=False)
    file.write("\n")
