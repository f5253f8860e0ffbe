//! The estimate of an endpoint's latency: a moving average that forgets over ten seconds, but jumps up to any answer that took
//! longer. A node that turns slow is avoided at once, and trusted again only slowly.

/// Time in which an observation's influence falls to 1/e.
const DECAY_MS: f32 = 10_000.0;
/// Assumed for a member that has not answered yet but has requests under way: with none it counts as the best, with
/// some it must not attract all traffic before its first answer. Linkerd's default.
const LATENCY_DEFAULT_US: f32 = 30_000.0;

/// One endpoint's latency estimate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Latency {
    /// The value at `seen_ms`; zero until the first observation.
    average_us: f32,
    seen_ms: u64,
}

impl Latency {
    /// Adds the time to one response head.
    pub(crate) fn observe(&mut self, latency_us: u32, now_ms: u64) {
        // Zero means "never observed".
        let latency_us = (latency_us as f32).max(1.0);
        self.average_us = if latency_us >= self.average_us {
            latency_us
        } else {
            let keep = self.keep(now_ms);
            self.average_us * keep + latency_us * (1.0 - keep)
        };
        self.seen_ms = now_ms;
    }

    /// The expected cost of a further request, with `active` under way already.
    pub(crate) fn cost(&self, active: u32, now_ms: u64) -> f32 {
        let latency_us = if self.average_us > 0.0 {
            // An estimate without new observations fades, so that a once slow member is tried again.
            self.average_us * self.keep(now_ms)
        } else if active > 0 {
            LATENCY_DEFAULT_US
        } else {
            0.0
        };
        latency_us * (active as f32 + 1.0)
    }

    fn keep(&self, now_ms: u64) -> f32 {
        (-(now_ms.saturating_sub(self.seen_ms) as f32) / DECAY_MS).exp()
    }

    /// The estimate in microseconds, for the status.
    pub(crate) fn average_us(&self) -> u32 {
        self.average_us as u32
    }
}
