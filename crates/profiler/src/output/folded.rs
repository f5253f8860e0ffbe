//! One line per stack, functions separated by semicolons, with a value: the input of flame graph
//! scripts.

use crate::profile::Profile;
use std::collections::BTreeMap;

/// Lines of a profile by one of its values, each stack once, below the name of its thread.
pub fn write(profile: &Profile, value: usize) -> String {
    let mut lines: BTreeMap<String, i64> = BTreeMap::new();
    for sample in &profile.samples {
        let mut line = sample.thread().replace(';', ":");
        for of in profile.functions_of(sample) {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&profile.functions[of.function].name.replace(';', ":").replace('\n', " "));
        }
        *lines.entry(line).or_default() += sample.values.get(value).copied().unwrap_or(0);
    }
    lines.into_iter().filter(|(_, value)| *value != 0).map(|(line, value)| format!("{line} {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::svg::example;
    use expect_test::expect;

    #[test]
    fn lines() {
        expect![[r#"
            worker-0;main;route;<&str as Matches>::find 1
            worker-0;main;route;<&str as Matches>::find;memchr 3
            worker-1;main 1
            worker-1;main;</script><b>"é 2
        "#]]
        .assert_eq(&write(&example(), 0));
    }
}
