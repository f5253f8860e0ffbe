//! The stacks of a profile as JSON, for `view.js`: names once, and stacks of their numbers.

use super::svg::title;
use crate::profile::{PHASE, Profile};
use serde_json::{Value as Json, json};
use std::collections::HashMap;

/// One of a profile's values; stacks are `[thread, phase, value, functions]`, the outermost function first.
pub fn of(profile: &Profile, value: usize) -> Json {
    let (mut threads, mut phases): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut stacks: HashMap<(usize, usize, Vec<usize>), i64> = HashMap::new();
    for sample in &profile.samples {
        let amount = sample.values.get(value).copied().unwrap_or(0);
        if amount == 0 {
            continue;
        }
        let thread = number(&mut threads, sample.thread());
        let phase = number(&mut phases, sample.text(PHASE));
        let stack = profile.functions_of(sample).map(|line| line.function).collect();
        *stacks.entry((thread, phase, stack)).or_default() += amount;
    }
    let mut stacks: Vec<_> = stacks.into_iter().collect();
    stacks.sort_unstable();
    let stack = |((thread, phase, stack), value)| json!([thread, phase, value, stack]);
    json!({
        "title": title(profile, value),
        "unit": profile.values.get(value).map_or("", |of| &of.unit),
        "notes": profile.notes,
        "threads": threads,
        "phases": phases,
        "functions": profile.functions.iter().map(|function| json!([function.name, function.file])).collect::<Vec<_>>(),
        "stacks": stacks.into_iter().map(stack).collect::<Vec<_>>(),
    })
}

fn number<'a>(names: &mut Vec<&'a str>, name: &'a str) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;

    #[test]
    fn equal_stacks_of_a_thread_and_phase_are_one() {
        let mut profile = example();
        profile.name_phases(&[("routing", "route")]);
        let stacks = of(&profile, 0);
        assert_eq!(stacks["threads"], json!(["worker-0", "worker-1"]));
        assert_eq!(stacks["phases"], json!(["routing", "other"]));
        assert_eq!(stacks["stacks"][1], json!([0, 0, 3, [0, 1, 2, 3]]));
    }
}
