//! Holm's correction for several tests at once.

/// The p-values adjusted so that comparing each with alpha keeps the chance of any false alarm at most alpha, however
/// the tests depend on each other (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure").
///
/// In the order given, never below the raw value, at most 1, and as R's `p.adjust(p, "holm")`; but a value that is
/// not a probability (NaN, below 0, above 1) counts as 1: a measure without an answer was still one of the questions.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let raw: Vec<f64> = p.iter().map(|&p| if (0.0..=1.0).contains(&p) { p } else { 1.0 }).collect();
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by(|&a, &b| raw[a].total_cmp(&raw[b]));
    let mut adjusted = vec![0.0; raw.len()];
    let mut floor = 0.0_f64;
    for (rejected, &index) in order.iter().enumerate() {
        floor = floor.max((raw.len() - rejected) as f64 * raw[index]).min(1.0);
        adjusted[index] = floor;
    }
    adjusted
}
