//! Notes for comparisons between built-in targets: differences that are due to their setup or their requests, and not
//! to scrapes.

use crate::result::tail::TailResult;
use crate::target::Kind;

/// The notes that apply to the targets of this result, a sentence each.
pub(crate) fn notes(result: &TailResult) -> Vec<String> {
    let named = |kinds: &[Kind]| {
        let mut names: Vec<&str> = Vec::new();
        for cell in &result.cells {
            let name = cell.subject.name.as_str();
            if Kind::named(name).is_some_and(|kind| kinds.contains(&kind)) && !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(", ")
    };
    let mut notes = Vec::new();
    let by_requests = named(&[Kind::Stillgate, Kind::NginxLua]);
    if !by_requests.is_empty() {
        notes.push(format!(
            "{by_requests}: each request of the load counts under a label of its own query, which costs a look-up; the other \
             targets count under fixed names."
        ));
    }
    let uncompressed = named(&[Kind::Haproxy]);
    if !uncompressed.is_empty() && result.design.gzip {
        notes.push(format!("{uncompressed}: sends its exposition uncompressed although gzip is requested."));
    }
    let apart = named(&[Kind::Stillgate]);
    let cpus = result.design.placement.target_cpus.len();
    if !apart.is_empty() && cpus != 1 {
        notes.push(format!(
            "{apart}: answers scrapes on a separate thread, which has its own CPU if the target has several; haproxy \
             and nginx run with one thread or worker."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Experiment;
    use crate::tail::synthetic;

    #[test]
    fn only_applicable_notes_are_given() {
        let check = |name: &str, gzip: bool, cpus: usize, told: &[&str]| {
            let Experiment::Tail(mut tail) = synthetic::file(1, 1, 0.0).experiment else {
                panic!("it is of this kind")
            };
            tail.cells[0].subject.name = name.to_owned();
            tail.design.gzip = gzip;
            tail.design.placement.target_cpus = (0..cpus).collect();
            let notes = notes(&tail);
            assert_eq!(notes.len(), told.len(), "{notes:?}");
            assert!(notes.iter().zip(told).all(|(note, told)| note.contains(told)), "{notes:?}");
        };
        check("nginx", true, 2, &[]);
        check("haproxy", true, 1, &["haproxy: sends its exposition uncompressed"]);
        check("haproxy", false, 1, &[]);
        check("stillgate", true, 1, &["a label of its own query"]);
        check("stillgate", true, 2, &["a label of its own query", "a separate thread"]);
        check("nginx-lua", true, 2, &["a label of its own query"]);
    }
}
