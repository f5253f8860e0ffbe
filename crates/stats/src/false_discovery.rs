//! Benjamini and Hochberg's correction, for many tests, some of which are expected to find a difference.

/// The p-values adjusted so that among those at most q, no more than a share q is expected to be false, if tests are
/// independent or positively dependent (Benjamini & Hochberg 1995, "Controlling the False Discovery Rate").
///
/// In the order given and at most 1, as R's `p.adjust(p, "BH")`; a value that is not a probability counts as 1, as
/// in [`holm`](crate::holm). If nothing differs at all, any is at most q with a probability of at most q.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let raw: Vec<f64> = p.iter().map(|&p| if (0.0..=1.0).contains(&p) { p } else { 1.0 }).collect();
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by(|&a, &b| raw[a].total_cmp(&raw[b]));
    let mut adjusted = vec![0.0; raw.len()];
    let mut ceiling = 1.0_f64;
    for (rank, &index) in order.iter().enumerate().rev() {
        ceiling = ceiling.min(raw.len() as f64 / (rank + 1) as f64 * raw[index]);
        adjusted[index] = ceiling;
    }
    adjusted
}
