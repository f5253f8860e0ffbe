//! The origin of figures: the design, the machine, the programs, the command typed, and how to check it all.

use super::compare::{ReportInput, Section};
use super::markup::Text;
use super::{number, tables};
use crate::command_line::{quoted, quoted_word};
use crate::result::run::{Environment, Placement, Subject};

/// A table's rows.
pub(crate) type Rows = Vec<(&'static str, Option<String>)>;

/// Design, machine and check, as parts of a section.
pub(crate) fn parts(section: &mut Section, prefix: &str, source: &ReportInput, design: &Rows) {
    if !design.is_empty() {
        let table =
            tables::facts(&format!("{prefix}-design-t"), "Decided before the first measurement", design.clone());
        section.part(&format!("{prefix}-design"), "Design", &table);
    }
    let environment = &source.result.environment;
    let mut table = tables::facts(&format!("{prefix}-machine-t"), "The machine it ran on", machine(environment));
    for host in &environment.hosts {
        let caption = format!("The machine of the {}, {}", host.role, host.ip);
        table.push_str(&tables::facts(&format!("{prefix}-{}-t", host.role), &caption, machine(&host.environment)));
    }
    section.part(&format!("{prefix}-machine"), "Machine", &table);
    section.part(&format!("{prefix}-check"), "Check it", &check(source));
}

/// The properties of a measured program.
pub(crate) fn subject(id: &str, subject: &Subject) -> String {
    let rows = vec![
        ("name", Some(subject.name.clone())),
        ("version", subject.version.clone()),
        ("revision", subject.revision.clone()),
        ("command", Some(quoted(&subject.command))),
        ("SHA-256 of the binary", subject.binary_sha256.clone()),
    ];
    let mut out = tables::facts(id, "The program under measure", rows);
    if let Some(configuration) = &subject.configuration {
        let configuration = Text(configuration);
        out.push_str(&format!(
            "<pre tabindex=\"0\" role=\"group\" aria-label=\"Its configuration\">{configuration}</pre>\n"
        ));
    }
    out
}

pub(crate) fn placement_rows(placement: &Placement) -> Rows {
    let list = |cpus: &[usize]| {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        if cpus.is_empty() { "all".to_owned() } else { cpus.join(", ") }
    };
    let of_another = if placement.target_apart { ", of another machine" } else { "" };
    vec![
        ("CPUs of the target", Some(list(&placement.target_cpus) + of_another)),
        ("CPUs of load, upstream and scraper", Some(list(&placement.load_cpus))),
    ]
}

fn machine(machine: &Environment) -> Rows {
    let list = |lines: &[String]| if lines.is_empty() { None } else { Some(lines.join("; ")) };
    vec![
        ("CPU", machine.cpu_model.clone()),
        ("CPUs", Some(number::count(machine.cpus as u64))),
        ("clock", machine.cpu_mhz.map(|mhz| format!("{} MHz", number::plain(mhz)))),
        ("governor", machine.governor.clone()),
        ("turbo", machine.turbo.map(|turbo| if turbo { "on" } else { "off" }.to_owned())),
        ("hypervisor", machine.hypervisor.clone()),
        ("memory", Some(format!("{} MiB", number::count(machine.memory_mib)))),
        ("kernel", Some(machine.kernel.clone())),
        ("system", machine.system.clone()),
        ("clock source", machine.clock_source.clone()),
        ("mitigations", list(&machine.mitigations)),
        ("load average at the beginning", machine.load_average.map(|load| format!("{load:.2}"))),
        ("stolen by the host", machine.stolen_s.map(|stolen| format!("{} of CPU time", number::time(stolen * 1e6)))),
        // Of the folder it was run in, which need not be the program's.
        ("commit of the folder it ran in", machine.commit.clone()),
    ]
}

fn check(source: &ReportInput) -> String {
    let ReportInput { name, sha256, result, .. } = source;
    let name = quoted_word(name);
    let verify = format!("stillgate-lab verify {name}");
    let again = format!("stillgate-lab {}", quoted(&result.arguments));
    let sum = sha256.as_ref().map_or_else(String::new, |sum| {
        format!("<p>The file this page was made from, by its SHA-256:</p>\n{}", command(&format!("{sum}  {name}")))
    });
    format!(
        "<p>The result file holds all raw data. This recomputes the analysis from them and reports whether it is the same:</p>\n\
         {}{sum}<p>The experiment was run with:</p>\n{}\
         <p class=\"note\">Written {} by stillgate-lab {}, schema {}.</p>\n",
        command(&verify),
        command(&again),
        Text(&result.written_at),
        Text(&result.lab_version),
        result.schema_version
    )
}

fn command(text: &str) -> String {
    format!("<pre tabindex=\"0\" role=\"group\" aria-label=\"To be typed\"><code>{}</code></pre>\n", Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let table = tables::facts("t", "c", machine(&Environment { cpus: 2, ..Environment::default() }));
        assert!(table.contains("<th scope=\"row\">CPUs</th><td>2</td>"), "{table}");
        assert!(!table.contains("turbo"), "{table}");
    }
}
