//! APISIX's `#END`, the last line of a YAML file: without it, a file that was cut off looks like a whole one.
//!
//! Half of a YAML file is mostly valid, too, but lacks the guards in its other half. Files that need the flag are recognised by
//! their names, by their first comment, and by earlier versions. A file in JSON is whole if it can be read.

use std::path::Path;
use stillgate_config::{Diagnostic, Errors, FILE_BYTES_MAX, Severity};

/// The flag, as APISIX has it.
const END_FLAG: &[u8] = b"#END";

/// The comment at the top of an export, so that it needs the flag wherever it is read.
pub(crate) const ANNOUNCEMENT: &str = "# The last line is #END; without it, the file is refused as cut off.\n";

/// The last line of an export.
pub(crate) const LAST_LINE: &str = "#END\n";

/// Whether the last line of a text that is not blank has the flag, and nothing else. APISIX accepts it behind other text, too; but
/// then a file that is cut off behind a comment such as `# up to #END` would count as whole.
pub(crate) fn is_at_end_of(text: &[u8]) -> bool {
    let lines = without_mark(text.trim_ascii_end());
    lines.rsplit(|byte| matches!(byte, b'\n' | b'\r')).next().is_some_and(|last| last.trim_ascii() == END_FLAG)
}

/// Refuses a text without the flag if it needs one. `had_flag`: an earlier version had it.
pub(crate) fn check(file: Option<&Path>, text: &[u8], had_flag: bool) -> Result<(), Errors> {
    // Only the beginning of a larger one was read, and its size is an error.
    if text.len() > FILE_BYTES_MAX || is_at_end_of(text) || is_json(text) {
        return Ok(());
    }
    let why = match file.and_then(named_by_apisix) {
        Some(name) => format!("a file named {name} must end with `#END`, as in APISIX"),
        None if had_flag => "an earlier version of the file ended with `#END`".to_owned(),
        None if is_announced(text) => "the first comment of the file says that it ends with `#END`".to_owned(),
        None => return Ok(()),
    };
    let missing = match text.trim_ascii_end().ends_with(END_FLAG) {
        true => "there is other text before it in the last line",
        false => "`#END` is missing",
    };
    let missing = Diagnostic {
        severity: Severity::Error,
        path: String::new(),
        line: 0,
        column: 0,
        message: format!("the file may be cut off: {why}, and {missing}"),
        hint: Some("write `#END` as the last line of the whole file".to_owned()),
        excerpt: None,
    };
    let file = file.map(|file| file.display().to_string());
    Err(Errors { file, diagnostics: vec![missing], omitted: 0 })
}

/// The name of a file from which APISIX would read its resources: `apisix.yaml`, and `apisix-PROFILE.yaml`.
fn named_by_apisix(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    let profile = name.strip_prefix("apisix")?.strip_suffix(".yaml")?;
    (profile.is_empty() || profile.len() > 1 && profile.starts_with('-')).then_some(name)
}

/// Whether the text begins with a brace, so that it cannot be read unless that is closed.
fn is_json(text: &[u8]) -> bool {
    without_mark(text).trim_ascii_start().starts_with(b"{")
}

/// Whether a comment before the first value has the flag.
fn is_announced(text: &[u8]) -> bool {
    let lines = without_mark(text).split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let comments = lines.take_while(|line| line.is_empty() || line.starts_with(b"#"));
    comments.into_iter().any(|line| line.windows(END_FLAG.len()).any(|part| part == END_FLAG))
}

fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: &str, text: &str, had_flag: bool) -> Option<String> {
        check(Some(Path::new(file)), text.as_bytes(), had_flag).err().map(|errors| errors.to_string())
    }

    #[test]
    fn the_flag_is_a_line_of_its_own() {
        for text in ["#END", "routes: []\n#END\n", "a: 1\n \t#END \t\r\n\n", "a: 1\r#END\r", "\u{feff}#END"] {
            assert!(is_at_end_of(text.as_bytes()), "{text:?}");
        }
        for text in ["", "\n", "#EN", "#END\nroutes: []", "# END", "#end\n", "#END."] {
            assert!(!is_at_end_of(text.as_bytes()), "{text:?}");
        }
        // APISIX accepts these.
        for text in ["# The #END", "routes: [] #END\n", "##END", "\u{a0}#END", "a: '#END", "- #END\n", "#END#END"] {
            assert!(!is_at_end_of(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn a_file_with_a_name_of_apisix_needs_it() {
        for name in ["apisix.yaml", "/a/apisix.yaml", "conf/apisix-dev.yaml", "apisix-a-b.yaml"] {
            for text in ["", "routes: []\n", "#END\nroutes: []\n", "# only a comment"] {
                let refused = refusal(name, text, false).expect("it must be refused");
                assert!(refused.contains("must end with `#END`, as in APISIX"), "{refused}");
            }
            for text in ["routes: []\n#END", "#END", "{\"routes\": []}", "\u{feff} \n{\"routes\":"] {
                assert_eq!(refusal(name, text, false), None, "{name} {text}");
            }
        }
        for name in ["stillgate.yaml", "apisix.yml", "apisix.json", "apisix-.yaml", "my-apisix.yaml", "apisixes.yaml"] {
            assert_eq!(refusal(name, "routes: []\n", false), None, "{name}");
        }
        assert_eq!(check(None, b"routes: []", false), Ok(()));
    }

    #[test]
    fn a_file_that_announced_it_or_had_it_needs_it() {
        assert_eq!(
            refusal("f.yaml", "routes: []\n", true).as_deref(),
            Some(
                "f.yaml: the file may be cut off: an earlier version of the file ended with `#END`, and `#END` is \
                 missing; write `#END` as the last line of the whole file"
            )
        );
        for text in [ANNOUNCEMENT, "\u{feff}# a\n\n  # It ends with #END.\nroutes: []", "#END\r\nroutes: []"] {
            assert!(refusal("f.yaml", text, false).is_some_and(|why| why.contains("first comment")), "{text}");
            let whole = format!("{text}\n{LAST_LINE}");
            assert_eq!(refusal("f.yaml", &whole, true), None, "{whole}");
        }
        for text in ["routes: []\n# no #END\nupstreams: []\n", "a: '#END'\nroutes: []"] {
            assert_eq!(refusal("f.yaml", text, false), None, "{text}");
        }
        // It is too large, which is another error.
        let large = " ".repeat(FILE_BYTES_MAX) + "a";
        assert_eq!(refusal("f.yaml", &large, true), None);
    }

    #[test]
    fn a_flag_behind_other_text_is_named() {
        let refused = refusal("apisix.yaml", "routes: [] #END\n", false).expect("it must be refused");
        let expected = "must end with `#END`, as in APISIX, and there is other text before it in the last line; \
                        write `#END` as the last line of the whole file";
        assert!(refused.ends_with(expected), "{refused}");
    }

    /// Wherever such a file is cut, what is left of it is refused.
    #[test]
    fn every_part_of_a_file_that_needs_it_is_refused() {
        let text = "# It ends with #END\nroutes: # up to #END\n  - {id: a, uri: /*} #END\n  ##END\n  - {id: b, uri: /b}\n#END\n";
        for end in 0..text.len() - "\n".len() {
            assert!(refusal("f.yaml", &text[..end], true).is_some(), "{end}");
            assert!(refusal("apisix.yaml", &text[..end], false).is_some(), "{end}");
        }
    }
}
