//! Whether a plugin of ours adds no more than its equivalent in the cheapest peer.

use super::super::statistics::median;
use super::cases::Case;
use serde_json::{Value, json};

/// The gateway that is judged.
const OURS: &str = "stillgate";

/// The cost that a case adds to a request in one gateway.
pub(super) struct Added {
    pub(super) gateway: &'static str,
    /// The median of the rounds.
    pub(super) amount: f64,
    /// The minimum and the maximum of the rounds.
    pub(super) range: [f64; 2],
}

impl Added {
    /// Computes the cost from the rounds.
    pub(super) fn median(gateway: &'static str, rounds: impl Iterator<Item = f64> + Clone) -> Self {
        let range = [rounds.clone().fold(f64::MAX, f64::min), rounds.clone().fold(f64::MIN, f64::max)];
        Self { gateway, amount: median(rounds), range }
    }
}

/// The unit of an added cost.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Microseconds,
    Instructions,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Microseconds => "us",
            Unit::Instructions => "instructions",
        }
    }

    fn digits(self) -> usize {
        match self {
            Unit::Microseconds => 2,
            Unit::Instructions => 0,
        }
    }
}

/// Prints and returns the comparison of ours with the peer that adds least, if there is one. If the ranges of the rounds overlap,
/// more rounds could change it.
pub(super) fn verdict(case: &Case, added: impl Iterator<Item = Added>, unit: Unit) -> Option<Value> {
    let (ours, peers): (Vec<Added>, Vec<Added>) = added.partition(|added| added.gateway == OURS);
    let ours = ours.first()?;
    let cheapest = peers.iter().min_by(|a, b| a.amount.total_cmp(&b.amount))?;
    let adds_no_more = ours.amount <= cheapest.amount;
    let overlap = ours.range[0] <= cheapest.range[1] && cheapest.range[0] <= ours.range[1];
    let digits = unit.digits();
    println!(
        "{:32} {} than the cheapest peer: {:.digits$} against {:.digits$} of {}{}",
        case.name,
        if adds_no_more { "adds no more" } else { "adds MORE" },
        ours.amount,
        cheapest.amount,
        cheapest.gateway,
        if overlap { " (the ranges overlap)" } else { "" }
    );
    let name = unit.name();
    Some(json!({
        "case": case.name, "adds_no_more": adds_no_more, "ranges_overlap": overlap, format!("added_{name}"): ours.amount,
        "cheapest_peer": cheapest.gateway, format!("cheapest_peer_added_{name}"): cheapest.amount,
    }))
}

/// Prints the number of verdicts of each kind.
pub(super) fn count(verdicts: &[Value]) {
    let more = verdicts.iter().filter(|verdict| verdict["adds_no_more"] == false).count();
    println!(
        "{} rows with a peer: {} add no more than the cheapest, {more} add more",
        verdicts.len(),
        verdicts.len() - more
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ours: &[f64], peers: &[(&'static str, &[f64])]) -> Option<Value> {
        let case = Case { name: "a", features: Vec::new(), path: "/00/item", is_large: false };
        let all = [(OURS, ours)].into_iter().chain(peers.iter().copied());
        verdict(&case, all.map(|(gateway, rounds)| Added::median(gateway, rounds.iter().copied())), Unit::Instructions)
    }

    #[test]
    fn the_cheapest_peer_counts() {
        let peers: [(&str, &[f64]); 2] = [("nginx", &[30.0, 31.0]), ("haproxy", &[20.0, 24.0])];
        let more = judged(&[25.0, 27.0], &peers).unwrap();
        assert_eq!((&more["adds_no_more"], &more["ranges_overlap"]), (&json!(false), &json!(false)));
        assert_eq!((&more["cheapest_peer"], &more["added_instructions"]), (&json!("haproxy"), &json!(26.0)));
        let good = judged(&[10.0, 21.0], &peers).unwrap();
        assert_eq!((&good["adds_no_more"], &good["ranges_overlap"]), (&json!(true), &json!(true)));
        assert!(judged(&[1.0], &[]).is_none());
    }
}
