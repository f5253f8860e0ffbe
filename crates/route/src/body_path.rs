//! The path to a value among the arguments of a body: `model`, `user.name`, `messages[0].role`,
//! `messages[*].content[*].type`.

use std::fmt;

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BodyPath {
    text: Box<str>,
    steps: Box<[BodyStep]>,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BodyStep {
    /// The value under a name of an object.
    Name(Box<str>),
    /// The item of a list, counted from zero.
    Item(usize),
    /// All items of a list.
    Each,
}

impl BodyPath {
    /// `None` if the text is not a path of this form. Other parts of JSONPath (`..`, filters, slices) are not
    /// supported.
    pub(crate) fn parse(text: &str) -> Option<BodyPath> {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (name, mut indexes) = part.split_at(part.find('[').unwrap_or(part.len()));
            if name.is_empty() || name.contains([']', '*']) {
                return None;
            }
            steps.push(BodyStep::Name(name.into()));
            while !indexes.is_empty() {
                let (index, rest) = indexes.strip_prefix('[')?.split_once(']')?;
                steps.push(match index {
                    "*" => BodyStep::Each,
                    index if index.bytes().all(|byte| byte.is_ascii_digit()) => BodyStep::Item(index.parse().ok()?),
                    _ => return None,
                });
                indexes = rest;
            }
        }
        Some(BodyPath { text: text.into(), steps: steps.into() })
    }

    /// Its steps, at least one.
    pub fn steps(&self) -> &[BodyStep] {
        &self.steps
    }
}

impl fmt::Display for BodyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_step_by_step() {
        let shape = |text: &str| {
            let path = BodyPath::parse(text)?;
            assert_eq!(path.to_string(), text);
            let one = |step: &BodyStep| match step {
                BodyStep::Name(name) => name.to_string(),
                BodyStep::Item(index) => format!("#{index}"),
                BodyStep::Each => "all".to_owned(),
            };
            Some(path.steps().iter().map(one).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(shape("a").as_deref(), Some("a"));
        assert_eq!(shape("a-b.c d").as_deref(), Some("a-b c d"));
        assert_eq!(shape("messages[*].content[10][*].type").as_deref(), Some("messages all content #10 all type"));
        for bad in [
            "", ".", "a.", "a..b", ".a", "[0]", "a[", "a[]", "a[1", "a[+1]", "a[-1]", "a[1:2]", "a[0]b", "*", "a.*",
            "a]",
        ] {
            assert_eq!(shape(bad), None, "{bad}");
        }
        assert_eq!(shape("a[99999999999999999999]"), None);
    }
}
