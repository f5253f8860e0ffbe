//! The counts of a run over tunnels, sent from the process of the clients to the bench as one line of JSON.

use super::super::statistics::percentile;
use crate::Result;
use serde_json::{Value, json};

/// Some values of a distribution, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::bench) struct Quantiles {
    pub(in crate::bench) p50: u32,
    pub(in crate::bench) p99: u32,
    pub(in crate::bench) p99_9: u32,
    pub(in crate::bench) max: u32,
}

/// The counts of a run.
#[derive(Debug, Default, PartialEq)]
pub(in crate::bench) struct Counted {
    pub(in crate::bench) sent: u64,
    pub(in crate::bench) answered: u64,
    /// Pings that were never answered, or passed over by a later pong.
    pub(in crate::bench) lost: u64,
    /// Pings that were answered again.
    pub(in crate::bench) doubled: u64,
    /// Number of tunnels that ended.
    pub(in crate::bench) broken: u64,
    /// Why the first of them ended.
    pub(in crate::bench) ends: Vec<String>,
    /// From a ping to its pong.
    pub(in crate::bench) answer_us: Quantiles,
    /// The longest time of each tunnel.
    pub(in crate::bench) worst_us: Quantiles,
    /// How late the clients sent their pings.
    pub(in crate::bench) late_us: Quantiles,
    /// The longest time without a pong on any tunnel.
    pub(in crate::bench) silence_us: u32,
}

impl Quantiles {
    pub(super) fn of(mut values: Vec<u32>) -> Self {
        values.sort_unstable();
        let part = |part| percentile(&values, part);
        Self { p50: part(0.5), p99: part(0.99), p99_9: part(0.999), max: part(1.0) }
    }

    fn to_json(self) -> Value {
        json!([self.p50, self.p99, self.p99_9, self.max])
    }

    fn from_json(value: &Value) -> Option<Self> {
        let part = |at: usize| u32::try_from(value[at].as_u64()?).ok();
        Some(Self { p50: part(0)?, p99: part(1)?, p99_9: part(2)?, max: part(3)? })
    }
}

impl Counted {
    pub(in crate::bench) fn to_json(&self) -> Value {
        json!({
            "sent": self.sent, "answered": self.answered, "lost": self.lost, "doubled": self.doubled,
            "broken": self.broken, "ends": self.ends, "silence_us": self.silence_us,
            "answer_us": self.answer_us.to_json(), "worst_us": self.worst_us.to_json(),
            "late_us": self.late_us.to_json(),
        })
    }

    pub(super) fn from_json(value: &Value) -> Result<Self> {
        let read = || {
            let count = |name: &str| value[name].as_u64();
            let ends = value["ends"].as_array()?.iter().filter_map(Value::as_str);
            Some(Self {
                sent: count("sent")?,
                answered: count("answered")?,
                lost: count("lost")?,
                doubled: count("doubled")?,
                broken: count("broken")?,
                ends: ends.map(str::to_owned).collect(),
                answer_us: Quantiles::from_json(&value["answer_us"])?,
                worst_us: Quantiles::from_json(&value["worst_us"])?,
                late_us: Quantiles::from_json(&value["late_us"])?,
                silence_us: u32::try_from(count("silence_us")?).ok()?,
            })
        };
        read().ok_or_else(|| format!("not what a run counted: {value}").into())
    }

    /// The errors as text; `None`: there were none.
    pub(in crate::bench) fn wrong(&self) -> Option<String> {
        (self.lost + self.doubled + self.broken > 0).then(|| {
            let Self { lost, doubled, broken, .. } = self;
            format!("{broken} tunnels ended, {lost} messages lost, {doubled} doubled\n{}", self.ends.join("\n"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let counted = Counted {
            sent: 9,
            answered: 7,
            lost: 2,
            doubled: 1,
            broken: 1,
            ends: vec!["tunnel 3: closed".to_owned()],
            answer_us: Quantiles::of(vec![3, 1, 2]),
            silence_us: 5,
            ..Counted::default()
        };
        assert_eq!(counted.answer_us, Quantiles { p50: 2, p99: 3, p99_9: 3, max: 3 });
        assert_eq!(Counted::from_json(&counted.to_json()).unwrap(), counted);
        assert!(counted.wrong().unwrap().contains("tunnel 3"));
        assert_eq!(Counted::default().wrong(), None);
        assert!(Counted::from_json(&json!({"sent": 1})).is_err());
    }
}
