//! The responder's latency: a distribution, as typed and as drawn from.

use crate::command_line;
use std::str::FromStr;
use std::time::Duration;
use stillgate_stats::Random;

/// Larger draws are cut to this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// A distribution of delays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Latency {
    /// No delay.
    None,
    /// A constant delay.
    Fixed(Duration),
    /// Uniform between the two.
    Uniform(Duration, Duration),
    /// As in a queue, with this mean.
    Exponential(Duration),
    /// As in most services: the logarithm is normal.
    LogNormal {
        /// Half of all delays are shorter.
        median: Duration,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Mostly one delay, sometimes the other, as with a cache.
    Bimodal {
        /// The frequent delay.
        usual: Duration,
        /// The rare delay.
        other: Duration,
        /// The share of the rare delay, 0 to 1.
        share: f64,
    },
}

/// The syntax, for messages.
const SHAPES: &str = "write none, fixed:2ms, uniform:1ms,3ms, exponential:1ms (the mean), lognormal:1ms,0.5 (median, sigma) or \
                      bimodal:1ms,20ms,1% (usual, other, share of the other)";

/// The largest sigma: with it, one in a thousand takes a hundred thousand times the median.
const SIGMA_MAX: f64 = 4.0;

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Latency, String> {
        let (name, parts) = text.split_once(':').unwrap_or((text, ""));
        let parts: Vec<&str> = parts.split(',').collect();
        let latency = match (name, parts.as_slice()) {
            ("none", [""]) => Latency::None,
            ("fixed", [delay]) => Latency::Fixed(command_line::duration(delay)?),
            ("uniform", [low, high]) => Latency::Uniform(command_line::duration(low)?, command_line::duration(high)?),
            ("exponential", [mean]) => Latency::Exponential(command_line::duration(mean)?),
            ("lognormal", [median, sigma]) => {
                let sigma: f64 = sigma.parse().map_err(|_| SHAPES)?;
                if !(0.0..=SIGMA_MAX).contains(&sigma) {
                    return Err(format!("sigma {sigma} is not between 0 and {SIGMA_MAX}"));
                }
                Latency::LogNormal { median: command_line::duration(median)?, sigma }
            }
            ("bimodal", [usual, other, share]) => Latency::Bimodal {
                usual: command_line::duration(usual)?,
                other: command_line::duration(other)?,
                share: command_line::percent(share)?,
            },
            _ => return Err(SHAPES.to_owned()),
        };
        match latency {
            Latency::Uniform(low, high) if low > high => Err(format!("{low:?} is more than {high:?}")),
            latency => Ok(latency),
        }
    }
}

impl Latency {
    /// The next delay.
    pub(crate) fn draw(&self, random: &mut Random) -> Duration {
        let seconds = match *self {
            Latency::None => return Duration::ZERO,
            Latency::Fixed(delay) => return delay.min(LATENCY_MAX),
            Latency::Bimodal { usual, other, share } => {
                return if random.uniform() < share { other } else { usual }.min(LATENCY_MAX);
            }
            Latency::Uniform(low, high) => low.as_secs_f64() + random.uniform() * (high - low).as_secs_f64(),
            Latency::Exponential(mean) => random.exponential(mean.as_secs_f64()),
            Latency::LogNormal { median, sigma } => median.as_secs_f64() * (sigma * random.normal()).exp(),
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(LATENCY_MAX).min(LATENCY_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws per seed: enough to know one in a thousand to within a few per cent.
    const DRAWS: usize = 200_000;

    /// The share of draws up to each delay must be that of the distribution, to within five standard errors.
    fn check(text: &str, shares: &[(f64, f64)]) {
        let latency: Latency = text.parse().unwrap();
        let mut random = Random::new(11);
        let mut drawn: Vec<f64> = (0..DRAWS).map(|_| latency.draw(&mut random).as_secs_f64() * 1e3).collect();
        drawn.sort_by(f64::total_cmp);
        for &(up_to_ms, share) in shares {
            let found = drawn.partition_point(|&ms| ms <= up_to_ms) as f64 / DRAWS as f64;
            let allowed = 5.0 * (share * (1.0 - share) / DRAWS as f64).sqrt();
            assert!((found - share).abs() <= allowed, "{text}: {found} up to {up_to_ms} ms, not {share}");
        }
    }

    #[test]
    fn draws_have_the_distribution() {
        check("none", &[(0.0, 1.0)]);
        check("fixed:2ms", &[(1.999, 0.0), (2.001, 1.0)]);
        check("uniform:1ms,3ms", &[(0.999, 0.0), (1.5, 0.25), (2.0, 0.5), (2.98, 0.99), (3.0, 1.0)]);
        // 1 - exp(-x / 2)
        check("exponential:2ms", &[(1.386294361, 0.5), (4.605170186, 0.9), (9.210340372, 0.99), (13.815510558, 0.999)]);
        // exp(sigma z) for the normal quantiles z of these shares.
        check("lognormal:1ms,0.5", &[(1.0, 0.5), (1.898040, 0.9), (3.200112, 0.99), (4.688501, 0.999)]);
        check("bimodal:1ms,20ms,1%", &[(0.999, 0.0), (1.001, 0.99), (20.0, 1.0)]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in [
            "",
            "fixed",
            "fixed:",
            "fixed:2",
            "none:1ms",
            "exponential:-1ms",
            "lognormal:1ms",
            "lognormal:1ms,NaN",
            "lognormal:1ms,9",
            "bimodal:1ms,2ms,1",
            "uniform:3ms,1ms",
            "normal:1ms,1ms",
        ] {
            assert!(text.parse::<Latency>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_draw_overflows() {
        let latency: Latency = "lognormal:2h,4".parse().unwrap();
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| latency.draw(&mut random) <= LATENCY_MAX));
    }
}
