//! Files of hostile messages, with the required refusals.
//!
//! A case begins with `=== name: verdict`, a line of `#` comment may follow, the rest is the message in the notation of
//! [`crate::decode`]. The verdict is a list of words that the test interprets; here they are only stored.

use crate::notation::decode;

/// One case of a corpus.
#[derive(Debug, Clone)]
pub struct HostileCase {
    /// Unique in its file.
    pub name: String,
    /// The words after the name.
    pub verdict: Vec<String>,
    /// The bytes to send.
    pub message: Vec<u8>,
}

impl HostileCase {
    /// Whether the verdict has this word.
    pub fn says(&self, word: &str) -> bool {
        self.verdict.iter().any(|said| said == word)
    }

    /// The statuses the verdict allows.
    pub fn statuses(&self) -> Vec<u16> {
        self.verdict.iter().filter_map(|word| word.parse().ok()).collect()
    }
}

/// All cases of a corpus file.
///
/// # Panics
/// On text before the first case, a case without a verdict, or a repeated name.
pub fn hostile_cases(text: &str) -> Vec<HostileCase> {
    let mut cases: Vec<HostileCase> = Vec::new();
    let mut body = String::new();
    for line in text.lines().chain(["=== end: end"]) {
        let Some(title) = line.strip_prefix("=== ") else {
            if !line.starts_with('#') {
                body.push_str(line);
                body.push('\n');
            }
            continue;
        };
        match cases.last_mut() {
            Some(case) => case.message = decode(&body),
            None => assert!(body.trim().is_empty(), "text before the first case: {body:?}"),
        }
        body.clear();
        let (name, verdict) = title.split_once(": ").unwrap_or_else(|| panic!("no verdict: {title}"));
        assert!(cases.iter().all(|case| case.name != name), "{name} is used twice");
        cases.push(HostileCase {
            name: name.to_owned(),
            verdict: verdict.split_whitespace().map(str::to_owned).collect(),
            message: Vec::new(),
        });
    }
    cases.pop();
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cases() {
        let cases = hostile_cases("# comment\n=== one: 400 431\nGET\\tx\n\n=== two: 502 body\nx\\\n");
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].statuses(), [400, 431]);
        assert_eq!(cases[0].message, b"GET\tx\r\n\r\n");
        assert!(cases[1].says("body"));
        assert_eq!(cases[1].message, b"x");
    }
}
