//! The page around the sections: head, verdicts, contents.
//!
//! One file without a script, and with a policy that forbids everything but its own style sheet: a report may be sent
//! to anyone and put on any server. Light or dark follows the reader's system and can be switched, also without a
//! script.

use super::compare::{ReportInput, Section, Tone, chip};
use super::markup::{self, Text, write};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("../../assets/report.css");

/// A longer sentence is set in smaller type.
const LARGE_CHARS_MAX: usize = 190;

/// The whole page.
pub(crate) fn draw(sources: &[ReportInput], sections: &[Section]) -> String {
    let title = match sections {
        [only] => only.title.clone(),
        several => format!("{} results of stillgate-lab", several.len()),
    };
    let mut out = begin(&title, sections);
    for (number, (source, section)) in sources.iter().zip(sections).enumerate() {
        verdict(&mut out, number, source, section, sections.len() > 1);
    }
    out.push_str("</header>\n");
    for (number, (source, section)) in sources.iter().zip(sections).enumerate() {
        let name = if sections.len() > 1 { section.title.as_str() } else { "The evidence" };
        let id = prefix(number);
        write(
            &mut out,
            format_args!(
                "<section class=\"file\" aria-labelledby=\"{id}\"><h2 id=\"{id}\">{}</h2>\n<p class=\"note\">From {}, written {}</p>\n",
                Text(name),
                Text(&source.name),
                Text(&source.result.written_at)
            ),
        );
        out.push_str(&section.body);
        out.push_str("</section>\n");
    }
    out.push_str("</main>\n</div>\n</body>\n</html>\n");
    out
}

/// A page without result files: each section under its title, with its verdict.
pub(crate) fn without_files(title: &str, sections: &[Section]) -> String {
    let mut out = begin(title, sections);
    out.push_str("</header>\n");
    for (number, section) in sections.iter().enumerate() {
        let (id, tone, chip) = (prefix(number), section.tone.class(), chip(section.tone, section.word));
        let (title, sentence) = (Text(&section.title), Text(&section.sentence));
        write(
            &mut out,
            format_args!(
                "<section class=\"file apart\" aria-labelledby=\"{id}\"><h2 id=\"{id}\">{title}</h2>\n\
                 <div class=\"verdict {tone}\"><p class=\"about\">{chip}</p><p class=\"sentence\">{sentence}</p></div>\n"
            ),
        );
        let body = &section.body;
        write(&mut out, format_args!("<div class=\"part\">{body}</div></section>\n"));
    }
    out.push_str("</main>\n</div>\n</body>\n</html>\n");
    out
}

/// The page up to the verdicts, which are in the header.
fn begin(title: &str, sections: &[Section]) -> String {
    let mut out = head(title);
    write(
        &mut out,
        format_args!(
            "<body>\n<a class=\"skip\" href=\"#main\">Skip to the report</a>\n{}{}<div class=\"page\">\n{}\
             <main id=\"main\" tabindex=\"-1\">\n<header class=\"top\"><h1>{}</h1>\n",
            markup::marker_shapes(),
            bar(),
            contents(sections),
            Text(title)
        ),
    );
    out
}

/// The prefix of every id in a section.
pub(crate) fn prefix(number: usize) -> String {
    format!("f{}", number + 1)
}

fn head(title: &str) -> String {
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{hash}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"generator\" content=\"stillgate-lab {}\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n",
        env!("CARGO_PKG_VERSION"),
        Text(title)
    )
}

/// The bar on top, as the dashboard has it, with the choice of light and dark.
fn bar() -> &'static str {
    "<header class=\"bar\"><p class=\"brand\"><svg viewBox=\"0 0 32 32\" aria-hidden=\"true\">\
     <path d=\"M6 27V13a10 10 0 0 1 20 0v14\"/><path d=\"M11.500 27V14a4.500 4.500 0 0 1 9 0v13\"/>\
     <path class=\"brand-line\" d=\"M2.500 20.500h27\"/></svg>Stillgate <span>laboratory</span></p>\
     <fieldset class=\"theme\"><legend>Colours</legend>\
     <label><input type=\"radio\" name=\"theme\" id=\"theme-auto\" checked> system</label>\
     <label><input type=\"radio\" name=\"theme\" id=\"theme-light\"> light</label>\
     <label><input type=\"radio\" name=\"theme\" id=\"theme-dark\"> dark</label></fieldset></header>\n"
}

fn contents(sections: &[Section]) -> String {
    let mut out = String::from("<nav aria-label=\"Contents\">\n<ul>\n");
    for (number, section) in sections.iter().enumerate() {
        if sections.len() > 1 {
            let (id, name) = (prefix(number), Text(&section.title));
            write(&mut out, format_args!("<li class=\"level-0\"><a href=\"#{id}\">{name}</a></li>\n"));
        }
        for entry in &section.entries {
            let (level, id, tone, name) = (entry.level, Text(&entry.id), entry.tone.class(), Text(&entry.name));
            write(&mut out, format_args!("<li class=\"level-{level} {tone}\"><a href=\"#{id}\">{name}</a></li>\n"));
        }
    }
    out.push_str("</ul>\n</nav>\n");
    out
}

fn verdict(out: &mut String, number: usize, source: &ReportInput, section: &Section, several: bool) {
    let class = if section.sentence.chars().count() > LARGE_CHARS_MAX { " long" } else { "" };
    let (tone, chip) = (section.tone.class(), chip(section.tone, section.word));
    let about = if several {
        format!("<a href=\"#{}\">{}</a>", prefix(number), Text(&section.title))
    } else {
        Text(&source.name).to_string()
    };
    let (sentence, checked) = (Text(&section.sentence), checked(source));
    let details = match section.details.as_str() {
        "" => String::new(),
        details => format!("<p class=\"details\">{}</p>", Text(details)),
    };
    write(
        out,
        format_args!(
            "<div class=\"verdict {tone}\"><p class=\"about\">{chip} {about}</p>\
             <p class=\"sentence{class}\">{sentence}</p>{details}{checked}</div>\n"
        ),
    );
}

/// Whether the file matches its data. The verdict above is computed from the data in any case.
fn checked(source: &ReportInput) -> String {
    match source.differences {
        0 if source.words_compared => {
            "<p class=\"checked\">Recomputed from the raw data when this page was made: same result.</p>".to_owned()
        }
        0 => format!(
            "<p class=\"checked\">Recomputed from the raw data when this page was made: same figures, in the words of stillgate-lab {}. \
             Those of {}, which wrote the file, were not compared.</p>",
            env!("CARGO_PKG_VERSION"),
            Text(&source.result.lab_version)
        ),
        some => {
            let figures = if some == 1 {
                "One figure in the file is".to_owned()
            } else {
                format!("{some} figures in the file are")
            };
            format!(
                "<p class=\"checked\">{} {figures} not what its raw data and its design give; do not rely on it. This page was recomputed from the raw data. <code>stillgate-lab verify</code> names the differences.</p>",
                chip(Tone::Void, "differs")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// WCAG 2.2, success criteria 1.4.3, of text, and 1.4.11, of lines and marks.
    const TEXT_CONTRAST_MIN: f64 = 4.5;
    const MARK_CONTRAST_MIN: f64 = 3.0;

    /// The values of the dashboard's design.
    const TOKENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../admin/ui/tokens.css");

    /// Light and dark, as `--name: light-dark(#rrggbb, #rrggbb);`.
    fn colours() -> HashMap<&'static str, [f64; 2]> {
        let pairs = STYLE.lines().filter_map(|line| line.trim().strip_prefix("--")?.split_once(": light-dark("));
        let read = |(name, colours): (&'static str, &str)| {
            let (light, dark) = colours.strip_suffix(");")?.split_once(", ")?;
            Some((name, [luminance(light), luminance(dark)]))
        };
        pairs.filter_map(read).collect()
    }

    /// Relative luminance by WCAG.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    #[test]
    fn text_and_series_stand_out_from_their_ground() {
        let colours = colours();
        let check = |name: &str, grounds: &[&str], least: f64| {
            for (ground, scheme) in grounds.iter().flat_map(|ground| [(ground, 0), (ground, 1)]) {
                let (a, b) = (colours[name][scheme], colours[ground][scheme]);
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= least, "{name} on {ground}, scheme {scheme}: {contrast:.2}");
            }
        };
        for name in ["ink", "ink-2", "accent"] {
            check(name, &["ground", "surface", "surface-2"], TEXT_CONTRAST_MIN);
        }
        for (tone, ground) in
            [("bad", "bad-soft"), ("good", "good-soft"), ("accent", "accent-soft"), ("warn", "warn-soft")]
        {
            check(tone, &[ground, "surface"], TEXT_CONTRAST_MIN);
        }
        for series in ["p50", "p99", "p999", "connections", "tunnels", "ink-3", "mark"] {
            check(series, &["surface"], MARK_CONTRAST_MIN);
        }
    }

    #[test]
    fn the_design_is_that_of_the_dashboard() {
        let tokens = std::fs::read_to_string(TOKENS).unwrap();
        let (light, dark) = tokens.split_once("@media (prefers-color-scheme: dark)").unwrap();
        let value = |of: &str, name: &str| {
            let line =
                of.lines().find_map(|line| line.trim().strip_prefix("--")?.strip_prefix(name)?.strip_prefix(": "));
            line.map(|line| line.trim_end_matches(';').to_owned())
        };
        let own = STYLE.split_once(":root {").unwrap().1.split_once("\n}").unwrap().0;
        let names =
            own.lines().filter_map(|line| line.trim().strip_prefix("--")?.split_once(':')).map(|(name, _)| name);
        for name in names.filter(|name| *name != "shadow") {
            let light = value(light, name).unwrap_or_else(|| panic!("the dashboard has no --{name}"));
            let expected = match value(dark, name) {
                Some(dark) => format!("light-dark({light}, {dark})"),
                None => light,
            };
            assert_eq!(value(own, name), Some(expected), "--{name}");
        }
    }

    #[test]
    fn the_policy_has_the_hash_of_the_style_sheet() {
        let head = head("<title>");
        assert!(head.contains("default-src 'none'; style-src 'sha256-"), "{head}");
        assert!(head.contains("<title>&lt;title&gt;</title>"), "{head}");
        assert!(
            !STYLE.contains("url(") && !STYLE.contains("@import") && !STYLE.contains('<'),
            "it is self-contained, in HTML"
        );
    }
}
