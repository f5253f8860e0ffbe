//! Lua's patterns, matched in a bounded number of steps.
//!
//! LuaJIT's own matcher is C code that a hook cannot interrupt, and a pattern such as `a-a-a-b` takes it minutes on a
//! short text. So `string.find`, `match`, `gmatch` and `gsub` use this one.

/// Most captures of one pattern, as in Lua.
pub(crate) const CAPTURES_MAX: usize = 32;
/// Most steps of one search: about 10 ms.
const STEPS_MAX: u32 = 1_000_000;
/// Most nested items that are tried, which bounds the stack.
const DEPTH_MAX: u32 = 200;

/// The reason why a pattern could not be matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(pub(crate) &'static str);

const TOO_COMPLEX: Fault = Fault("pattern too complex: it takes more steps than a function may use");

/// Extent of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// It has not ended yet.
    Open,
    /// `()`: its position.
    Position,
    /// Its length in bytes.
    Bytes(usize),
}

/// Start and end of a capture; without an end it is the position itself.
pub(crate) type Span = (usize, Option<usize>);

/// Finds a pattern from a position on; the first span is the whole match, and captures follow.
pub(crate) fn find(text: &[u8], pattern: &[u8], from: usize, spans: &mut Vec<Span>) -> Result<bool, Fault> {
    spans.clear();
    let (pattern, is_anchored) = match pattern.split_first() {
        Some((b'^', rest)) => (rest, true),
        _ => (pattern, false),
    };
    let mut run = PatternMatch {
        text,
        pattern,
        captures: [(0, Length::Open); CAPTURES_MAX],
        count: 0,
        steps: STEPS_MAX,
        depth: 0,
    };
    for start in from..=text.len() {
        run.count = 0;
        if let Some(end) = run.matches(start, 0)? {
            spans.push((start, Some(end)));
            for (at, length) in &run.captures[..run.count] {
                spans.push(match length {
                    Length::Open => return Err(Fault("unfinished capture")),
                    Length::Position => (*at, None),
                    Length::Bytes(bytes) => (*at, Some(at + bytes)),
                });
            }
            return Ok(true);
        }
        if is_anchored {
            break;
        }
    }
    Ok(false)
}

/// Whether a pattern is a plain text.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

struct PatternMatch<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Length); CAPTURES_MAX],
    count: usize,
    steps: u32,
    depth: u32,
}

type MatchResult = Result<Option<usize>, Fault>;

impl PatternMatch<'_> {
    /// The end of the match of the pattern's rest from `p` on at `s`.
    fn matches(&mut self, s: usize, p: usize) -> MatchResult {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(TOO_COMPLEX);
        }
        let end = self.items(s, p);
        self.depth -= 1;
        end
    }

    fn items(&mut self, mut s: usize, mut p: usize) -> MatchResult {
        loop {
            self.step()?;
            let Some(item) = self.pattern.get(p) else { return Ok(Some(s)) };
            match (item, self.pattern.get(p + 1)) {
                (b'(', Some(b')')) => return self.open(s, p + 2, Length::Position),
                (b'(', _) => return self.open(s, p + 1, Length::Open),
                (b')', _) => return self.close(s, p + 1),
                (b'%', Some(b'b')) => match self.balanced(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => {
                    if self.pattern.get(p + 2) != Some(&b'[') {
                        return Err(Fault("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(p + 2)?;
                    let before = if s == 0 { 0 } else { self.text[s - 1] };
                    let here = self.text.get(s).copied().unwrap_or(0);
                    if self.in_set(before, p + 2, end) || !self.in_set(here, p + 2, end) {
                        return Ok(None);
                    }
                    p = end;
                }
                (b'%', Some(digit)) if digit.is_ascii_digit() => match self.repeated(s, *digit)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                (b'$', None) => return Ok((s == self.text.len()).then_some(s)),
                _ => {
                    let end = self.class_end(p)?;
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if self.is_one(s, p, end)
                                && let Some(matched) = self.matches(s + 1, end + 1)?
                            {
                                return Ok(Some(matched));
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.most(s, p, end, 0),
                        Some(b'+') => return self.most(s, p, end, 1),
                        Some(b'-') => return self.fewest(s, p, end),
                        _ if self.is_one(s, p, end) => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(1).ok_or(TOO_COMPLEX)?;
        Ok(())
    }

    /// The end of the single item that begins at `p`.
    fn class_end(&self, p: usize) -> Result<usize, Fault> {
        match self.pattern[p] {
            b'%' if p + 1 >= self.pattern.len() => Err(Fault("malformed pattern (ends with '%')")),
            b'%' => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.pattern.get(at) == Some(&b'^') {
                    at += 1;
                }
                // A first `]` is literal.
                loop {
                    match self.pattern.get(at) {
                        None => return Err(Fault("malformed pattern (missing ']')")),
                        Some(b'%') => at += 2,
                        Some(_) => at += 1,
                    }
                    if self.pattern.get(at) == Some(&b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    fn is_one(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(byte) = self.text.get(s).copied() else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => in_class(byte, self.pattern[p + 1]),
            b'[' => self.in_set(byte, p, end),
            plain => plain == byte,
        }
    }

    /// Whether a byte is in the set at `p..end`, whose brackets are included.
    fn in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let (mut at, last) = (p + 1, end - 1);
        let is_negated = self.pattern[at] == b'^';
        at += usize::from(is_negated);
        while at < last {
            let is_in = match self.pattern[at] {
                b'%' => {
                    at += 2;
                    in_class(byte, self.pattern[at - 1])
                }
                low if self.pattern[at + 1] == b'-' && at + 2 < last => {
                    at += 3;
                    (low..=self.pattern[at - 1]).contains(&byte)
                }
                plain => {
                    at += 1;
                    plain == byte
                }
            };
            if is_in {
                return !is_negated;
            }
        }
        is_negated
    }

    fn most(&mut self, s: usize, p: usize, end: usize, at_least: usize) -> MatchResult {
        let mut count = 0;
        while self.is_one(s + count, p, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if count < at_least {
                return Ok(None);
            }
            if let Some(matched) = self.matches(s + count, end + 1)? {
                return Ok(Some(matched));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn fewest(&mut self, mut s: usize, p: usize, end: usize) -> MatchResult {
        loop {
            if let Some(matched) = self.matches(s, end + 1)? {
                return Ok(Some(matched));
            }
            if !self.is_one(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, s: usize, p: usize, length: Length) -> MatchResult {
        if self.count >= CAPTURES_MAX {
            return Err(Fault("too many captures"));
        }
        self.captures[self.count] = (s, length);
        self.count += 1;
        let matched = self.matches(s, p)?;
        if matched.is_none() {
            self.count -= 1;
        }
        Ok(matched)
    }

    fn close(&mut self, s: usize, p: usize) -> MatchResult {
        let open = self.captures[..self.count].iter().rposition(|(_, length)| *length == Length::Open);
        let at = open.ok_or(Fault("invalid pattern capture"))?;
        self.captures[at].1 = Length::Bytes(s - self.captures[at].0);
        let matched = self.matches(s, p)?;
        if matched.is_none() {
            self.captures[at].1 = Length::Open;
        }
        Ok(matched)
    }

    /// `%bxy`
    fn balanced(&mut self, s: usize, p: usize) -> MatchResult {
        let [open, close] = *self.pattern.get(p..p + 2).ok_or(Fault("unbalanced pattern"))? else {
            return Err(Fault("unbalanced pattern"));
        };
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1_usize;
        for (at, byte) in self.text.iter().enumerate().skip(s + 1) {
            self.step()?;
            if *byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if *byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// `%1`: matches the text of a capture again.
    fn repeated(&mut self, s: usize, digit: u8) -> MatchResult {
        let at = usize::from(digit).wrapping_sub(usize::from(b'1'));
        match self.captures[..self.count].get(at) {
            Some((from, Length::Bytes(bytes))) => {
                let held = &self.text[*from..from + bytes];
                Ok(self.text[s..].starts_with(held).then_some(s + bytes))
            }
            _ => Err(Fault("invalid capture index")),
        }
    }
}

/// Whether a byte is in a class such as `%a`, as in the C locale; any other letter is literal.
fn in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, pattern: &str, expected: Option<&[&str]>) {
        let mut spans = Vec::new();
        let is_found = find(text.as_bytes(), pattern.as_bytes(), 0, &mut spans).unwrap();
        let found: Vec<String> = spans
            .iter()
            .map(|(from, to)| to.map_or_else(|| format!("@{from}"), |to| text[*from..to].to_owned()))
            .collect();
        assert_eq!(
            is_found.then_some(&found[..]),
            expected.map(|all| all.iter().map(|s| s.to_string()).collect::<Vec<_>>()).as_deref(),
            "{text} {pattern}"
        );
    }

    #[test]
    fn patterns_of_the_manual() {
        check("hello world", "o w", Some(&["o w"]));
        check("key = value", "(%w+)%s*=%s*(%w+)", Some(&["key = value", "key", "value"]));
        check("THE (quick) fox", "%((%a+)%)", Some(&["(quick)", "quick"]));
        check("f(a(b)c)d", "%b()", Some(&["(a(b)c)"]));
        check("THE (quick) fox", "%f[%a]%a+%f[%A]", Some(&["THE"]));
        check("hello", "()ll()", Some(&["ll", "@2", "@4"]));
        check("\"it's\"", "([\"'])(.-)%1", Some(&["\"it's\"", "\"", "it's"]));
        check("aaab", "a-b", Some(&["aaab"]));
        check("[]]", "[]]", Some(&["]"]));
        check("a-c", "[a-c]+", Some(&["a"]));
        check("x^y", "[%^x]+", Some(&["x^"]));
        check("", "^$", Some(&[""]));
        check("abc", "^b", None);
        check("abc", "b$", None);
        check("ab", "a?b?c?$", Some(&["ab"]));
    }

    #[test]
    fn what_is_wrong_is_said_as_lua_says_it() {
        let fault = |pattern: &str| find(b"aaa", pattern.as_bytes(), 0, &mut Vec::new()).unwrap_err().0;
        assert_eq!(fault("%"), "malformed pattern (ends with '%')");
        assert_eq!(fault("[a"), "malformed pattern (missing ']')");
        assert_eq!(fault("[a%"), "malformed pattern (missing ']')");
        assert_eq!(fault("(a"), "unfinished capture");
        assert_eq!(fault("a)"), "invalid pattern capture");
        assert_eq!(fault("%1"), "invalid capture index");
        assert_eq!(fault("%b("), "unbalanced pattern");
        assert_eq!(fault("%fa"), "missing '[' after '%f' in pattern");
    }

    #[test]
    fn a_search_without_end_is_given_up() {
        let text = vec![b'a'; 5_000];
        let pattern = b"a-a-a-a-a-a-a-a-a-a-a-b";
        assert_eq!(find(&text, pattern, 0, &mut Vec::new()), Err(TOO_COMPLEX));
        let nested = b"(a?".repeat(31);
        let deep: Vec<u8> = nested.iter().copied().chain(b"a?".repeat(400)).chain(b")".repeat(31)).collect();
        assert_eq!(find(&text, &deep, 0, &mut Vec::new()), Err(TOO_COMPLEX));
    }
}
