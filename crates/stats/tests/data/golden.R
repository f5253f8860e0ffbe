# Makes r.json, the values of R that tests/all/golden.rs holds the crate against. Run here: Rscript golden.R
# Made with R 4.2.2, rpact 3.3.4 (group-sequential bounds), boot 1.3, jsonlite 1.8.4.
suppressMessages({library(jsonlite); library(rpact); library(boot)})
set.seed(20240501)
suppressWarnings({

samples <- list(
  normal = round(rnorm(12), 6), ties = c(1, 2, 2, 3, 3, 3, 4), one = 5, two = c(1, 9), constant = rep(7, 5),
  heavy = round(rcauchy(31), 5), wide = c(-1e300, -1, 0, 1e-300, 1e300), many = round(rexp(400), 6)
)

quantiles <- list()
for (name in names(samples)) for (q in c(0, 0.01, 0.25, 0.5, 0.9, 0.999, 1)) {
  x <- sort(samples[[name]])
  quantiles[[length(quantiles) + 1]] <- list(name = name, sorted = I(x), q = q, value = unname(quantile(x, q, type = 7)))
}

# The largest low with P(B < low) <= tail and the smallest high with P(B >= high) <= tail.
ranks <- list()
for (n in c(1, 5, 6, 7, 20, 100, 299, 1000, 3687, 3688, 3689, 10000, 123456, 1e6, 1e9)) for (q in c(0.5, 0.9, 0.99, 0.999, 0.05))
  for (confidence in c(0.9, 0.95, 0.999)) {
    tail <- (1 - confidence) / 2
    low <- qbinom(tail, n, q)
    high <- qbinom(tail, n, q, lower.tail = FALSE) + 1
    ok <- low >= 1 && high <= n
    ranks[[length(ranks) + 1]] <- list(count = n, q = q, confidence = confidence, low = if (ok) low else NULL, high = if (ok) high else NULL)
  }

diffs <- list(
  untied = c(1.83, 0.5, 1.62, 2.48, -1.68, 1.88, -1.55, 3.06, 1.3), six = c(0.1, 0.2, 0.35, 0.5, 0.7, 0.8),
  fifty = round(rnorm(50, 0.3), 7), fiftyone = round(rnorm(51, 0.2), 7), hundred = round(rnorm(100, 0.25), 7),
  thousand = round(rnorm(1000, 0.1), 6), strong = round(rnorm(200, 3), 6), rounded = round(rnorm(120, 0.2), 1),
  zeros = c(rep(0, 20), round(rnorm(80, 0.3), 1)), tiny = c(1e-12, -2e-12, 3e-12, 4e-12, 5.5e-12, 6e-12, 7e-12)
)
signed <- list()
for (name in names(diffs)) {
  x <- diffs[[name]]
  exact <- sum(x != 0) <= 50
  w <- wilcox.test(x, exact = exact, correct = TRUE)
  t <- t.test(x, conf.level = 0.95)
  conf <- NULL
  if (exact && !any(x == 0)) {
    c95 <- wilcox.test(x, exact = TRUE, conf.int = TRUE, conf.level = 0.95)
    conf <- list(value = unname(c95$estimate), low = c95$conf.int[1], high = c95$conf.int[2])
  } else {
    # The exact order statistics of the Walsh averages, whatever n: R itself solves for a normal approximation.
    walsh <- sort(outer(x, x, "+")[!lower.tri(diag(length(x)))] / 2)
    place <- qsignrank(0.025, length(x))
    m <- length(walsh)
    # Places may differ a little from the exact ones where the crate approximates: neighbours are the bounds.
    off <- 1 + length(x) %/% 300
    conf <- list(value = median(walsh), low = walsh[place], high = walsh[m + 1 - place],
                 low_from = walsh[place - off], low_to = walsh[place + off], high_from = walsh[m + 1 - place - off], high_to = walsh[m + 1 - place + off])
  }
  signed[[length(signed) + 1]] <- list(name = name, diffs = x, w_plus = unname(w$statistic), p_value = w$p.value,
    exact = exact, hodges_lehmann = conf, t = list(t = unname(t$statistic), p_value = t$p.value, mean = unname(t$estimate),
    low = t$conf.int[1], high = t$conf.int[2], sd = sd(x)))
}

mw <- list()
add <- function(a, b, exact) {
  w <- wilcox.test(b, a, exact = exact, correct = TRUE)
  mw[[length(mw) + 1]] <<- list(a = I(a), b = I(b), u = unname(w$statistic), p_value = if (is.nan(w$p.value)) 1 else w$p.value, exact = exact)
}
add(c(0.8, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46), c(1.15, 0.88, 0.9, 0.74, 1.21), TRUE)
add(1, 2, TRUE); add(c(1, 2, 3), c(4, 5, 6, 7), TRUE); add(as.numeric(1:49), 1:49 + 30.5, TRUE)
add(round(rnorm(49), 7), round(rnorm(20, 0.4), 7), TRUE); add(round(rnorm(7), 7), round(rnorm(40), 7), TRUE)
add(round(rnorm(50), 7), round(rnorm(50, 0.5), 7), FALSE); add(round(rnorm(80), 1), round(rnorm(60, 0.3), 1), FALSE)
add(rep(3, 60), rep(3, 60), FALSE); add(rep(c(1, 2), 40), rep(c(1, 2), c(20, 60)), FALSE)
add(round(rnorm(500), 5), round(rnorm(400, 2), 5), FALSE); add(c(1, 2), round(rnorm(70), 6), FALSE)

holms <- lapply(list(c(0.01, 0.04, 0.03, 0.005), c(0.2, 0.2, 0.9), 0.03, c(0, 1, 0.5), c(1e-300, 1e-20, 0.049, 0.05, 0.051), rep(0.01, 6)),
  function(p) list(p = I(p), adjusted = I(p.adjust(p, "holm"))))

powers <- list()
for (n in c(2, 3, 5, 10, 30, 200, 5000)) for (effect in c(0.01, 0.3, 1, 4)) for (alpha in c(0.05, 0.001)) {
  p <- power.t.test(n = n, delta = effect, sd = 1.3, sig.level = alpha, type = "paired", strict = TRUE)$power
  powers[[length(powers) + 1]] <- list(n = n, sd = 1.3, effect = effect, alpha = alpha, power = p)
}
needed <- list()
for (effect in c(0.05, 0.2, 0.5, 1, 3)) for (goal in c(0.8, 0.95)) {
  n <- power.t.test(delta = effect, sd = 1, power = goal, sig.level = 0.05, type = "paired", strict = TRUE, tol = 1e-10)$n
  needed[[length(needed) + 1]] <- list(sd = 1, effect = effect, alpha = 0.05, power = goal, pairs = ceiling(n))
}
effects <- list()
for (n in c(4, 10, 30, 500)) for (goal in c(0.5, 0.8, 0.95)) {
  d <- power.t.test(n = n, sd = 0.7, power = goal, sig.level = 0.05, type = "paired", strict = TRUE, tol = 1e-12)$delta
  effects[[length(effects) + 1]] <- list(n = n, sd = 0.7, alpha = 0.05, power = goal, effect = d)
}

two <- list()
add_two <- function(a, b) {
  t <- t.test(b, a, var.equal = TRUE, conf.level = 0.95)
  two[[length(two) + 1]] <<- list(a = I(a), b = I(b), t = unname(t$statistic), df = unname(t$parameter), p_value = t$p.value,
    value = unname(t$estimate[1] - t$estimate[2]), low = t$conf.int[1], high = t$conf.int[2],
    sd = sqrt((sum((a - mean(a))^2) + sum((b - mean(b))^2)) / (length(a) + length(b) - 2)))
}
add_two(c(1000, 1001, 999), c(1050, 1051, 1049)); add_two(c(1000, 1001, 999), c(1001, 999, 1000.5))
add_two(c(9.1, 9.4), c(9.2, 9.9)); add_two(7, c(8, 9, 9.5, 12)); add_two(c(-1e6, 3, 2e6, 5, 8e5), c(1, -2, 4.5, 1e6))
add_two(samples$many[1:200], samples$many[201:400]); add_two(c(1e-9, 2e-9, 4e-9), c(3e-9, 8e-9, 9e-9, 1e-8))
two_effects <- list()
# Not 2 values a side at 0.00125: beyond a noncentrality of 37 R approximates.
for (n in c(2, 3, 10, 300)) for (goal in c(0.5, 0.9)) for (alpha in if (n == 2) 0.05 else c(0.05, 0.00125)) {
  d <- power.t.test(n = n, sd = 0.7, power = goal, sig.level = alpha, type = "two.sample", strict = TRUE, tol = 1e-12)$delta
  two_effects[[length(two_effects) + 1]] <- list(n = n, sd = 0.7, alpha = alpha, power = goal, effect = d)
}

sequential <- list()
rates <- list(c(1), c(0.5, 1), 1:3 / 3, 1:5 / 5, 1:10 / 10, c(0.1, 0.15, 0.5, 0.9, 1), 1:20 / 20, c(0.05, 0.99, 1))
for (rate in rates) for (alpha in c(0.05, 0.01)) for (type in c("asOF", "asP")) {
  if (length(rate) == 1) { bounds <- qnorm(1 - alpha / 2) } else {
    design <- getDesignGroupSequential(sided = 2, alpha = alpha, informationRates = rate, typeOfDesign = type, tolerance = 1e-10)
    bounds <- design$criticalValues
  }
  # Power at a drift that a single look finds with 80%.
  drift <- qnorm(1 - alpha / 2) + qnorm(0.8)
  crossing <- if (length(rate) == 1) NULL else {
    d <- getDesignGroupSequential(sided = 2, alpha = alpha, informationRates = rate, typeOfDesign = type, tolerance = 1e-10)
    as.numeric(getPowerAndAverageSampleNumber(d, theta = drift, nMax = 1)$overallReject)
  }
  sequential[[length(sequential) + 1]] <- list(information = I(rate), alpha = alpha, spending = type, bounds = I(bounds), drift = drift, power = crossing)
}

# Monte Carlo of R's own draws: tests allow for its error.
boots <- lapply(list(list(name = "mean", x = round(rexp(30), 5), f = mean), list(name = "sd", x = round(runif(40), 5), f = sd)),
  function(case) {
    b <- boot(case$x, function(d, i) case$f(d[i]), R = 200000)
    ci <- boot.ci(b, conf = 0.9, type = "bca", L = empinf(data = case$x, statistic = function(d, i) case$f(d[i]), type = "jack", stype = "i"))$bca
    list(statistic = case$name, sample = case$x, confidence = 0.9, value = b$t0, low = ci[4], high = ci[5])
  })
})
result <- list(quantiles = quantiles, ranks = ranks, signed_rank = signed, mann_whitney = mw, holm = holms, power = powers,
  pairs_needed = needed, minimum_detectable_effect = effects,
  two_sample_t = two, minimum_detectable_effect_two_sample = two_effects, sequential = sequential, bootstrap = boots)
write(toJSON(result, digits = I(17), auto_unbox = TRUE, null = "null"), "r.json")
