//! A target that is any other program: its command with the addresses of this start filled in.
//!
//! It is split into words before anything is filled in, and not given to a shell: a folder with a space stays one word,
//! and the measured process is the program and not a shell before it.

use super::start::LaunchInputs;
use super::{Kind, MetricsAddress, Spec, program};
use crate::error::Result;
use std::path::{Path, PathBuf};
use stillgate_load::Target;

const ADDRESS: &str = "{address}";
pub(super) const METRICS: &str = "{metrics}";
pub(super) const ADMIN: &str = "{admin}";
pub(super) const ADMIN_PORT: &str = "{admin_port}";
pub(super) const CONFIGURATION: &str = "{config}";
const PORT: &str = "{port}";

/// The file with the configuration of a command, if it was given one.
pub(super) const COMMAND_CONFIGURATION: &str = "configuration";

/// The command to run.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) program: PathBuf,
    /// The arguments after the program.
    pub(super) words: Vec<String>,
    pub(super) metrics: Option<MetricsAddress>,
}

pub(super) fn read(spec: &Spec, place: &LaunchInputs<'_>) -> Result<Command> {
    let written = written(spec)?;
    let mut texts = written.iter().chain(&spec.configuration);
    if spec.address.is_none() && !texts.any(|text| text.contains(ADDRESS) || text.contains(PORT)) {
        return Err(format!(
            "{}: its address is unknown; write {ADDRESS} into its command, or give the address that it uses",
            spec.name
        )
        .into());
    }
    let url = match &spec.metrics {
        Some(url) => Some(fill(url, place)),
        None => written
            .iter()
            .chain(&spec.configuration)
            .any(|text| text.contains(METRICS))
            .then(|| format!("http://{}/metrics", place.metrics)),
    };
    let mut words = written.iter().map(|word| fill(word, place));
    let first = words.next().ok_or_else(|| format!("{}: its command is empty", spec.name))?;
    Ok(Command {
        program: program::find(Kind::Command, Some(Path::new(&first)))?,
        words: words.collect(),
        metrics: url.map(|url| metrics_address(&url)).transpose()?,
    })
}

/// Fills in the placeholders in braces.
pub(super) fn fill(word: &str, place: &LaunchInputs<'_>) -> String {
    word.replace(ADDRESS, &place.address.to_string())
        .replace(METRICS, &place.metrics.to_string())
        .replace(ADMIN, &place.admin.to_string())
        .replace(ADMIN_PORT, &place.admin.port().to_string())
        .replace(CONFIGURATION, &place.file(COMMAND_CONFIGURATION).to_string_lossy())
        .replace(PORT, &place.address.port().to_string())
        .replace("{upstream}", &place.upstream.to_string())
        .replace("{upstream_port}", &place.upstream.port().to_string())
        .replace("{dir}", &place.directory.to_string_lossy())
}

/// The address of the exposition at a URL.
fn metrics_address(url: &str) -> Result<MetricsAddress> {
    let target = Target::resolve(url).map_err(|error| format!("metrics {url:?}: {error}"))?;
    if target.is_secure {
        return Err(format!("metrics {url:?}: scrapes do not support TLS; use an http:// listener").into());
    }
    let address = target.addresses.first().ok_or_else(|| format!("metrics {url:?}: it has no address"))?;
    Ok(MetricsAddress { address: *address, path: target.path_and_query })
}

/// The command's words as they were written.
fn written(spec: &Spec) -> Result<Vec<String>> {
    let mut words = match (&spec.command, &spec.program) {
        (Some(command), _) => shlex::split(command)
            .ok_or_else(|| format!("{}: a quote is not closed in its command: {command}", spec.name))?,
        (None, Some(program)) => vec![program.to_string_lossy().into_owned()],
        (None, None) => return Err(format!("{}: neither a command nor a program was given", spec.name).into()),
    };
    words.extend(spec.arguments.iter().cloned());
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_its_own_says_where_it_listens() {
        let configured = |text: &str| Spec { configuration: Some(text.to_owned()), ..spec("sh -c {config}") };
        let command = read(&configured("listen {port}; metrics {metrics}"), &LaunchInputs::example(None)).unwrap();
        assert_eq!((command.words[1].as_str(), command.metrics.is_some()), ("/dir/configuration", true));
        assert!(read(&configured("listen 80"), &LaunchInputs::example(None)).is_err());
    }

    fn spec(command: &str) -> Spec {
        Spec { command: Some(command.to_owned()), ..Spec::built_in(Kind::Command, PathBuf::from("/d")) }
    }

    #[test]
    fn words_are_split_and_filled_in() {
        let place = LaunchInputs { directory: Path::new("/with space"), ..LaunchInputs::example(None) };
        let with_more =
            Spec { arguments: vec!["--to={upstream}".to_owned()], ..spec("sh -x 'a  b' {address} {dir}/c") };
        let command = read(&with_more, &place).unwrap();
        assert!(command.program.ends_with("sh"));
        assert_eq!(command.words, ["-x", "a  b", "127.0.0.1:8080", "/with space/c", "--to=127.0.0.1:3000"]);
        assert_eq!(command.metrics, None);
    }

    #[test]
    fn where_the_exposition_is() {
        #[track_caller]
        fn check(command: &str, metrics: Option<&str>, expected: Option<&str>) {
            let spec = Spec { metrics: metrics.map(str::to_owned), ..spec(command) };
            let found = read(&spec, &LaunchInputs::example(None)).unwrap().metrics;
            let found = found.map(|metrics| format!("{}{}", metrics.address, metrics.path));
            assert_eq!(found.as_deref(), expected);
        }
        check("sh {address}", None, None);
        check("sh {port} {metrics}", None, Some("127.0.0.1:9090/metrics"));
        check("sh {address} {metrics}", Some("http://{metrics}/stats?all"), Some("127.0.0.1:9090/stats?all"));
        check("sh {address}", Some("http://{address}/metrics"), Some("127.0.0.1:8080/metrics"));
        check("sh {address}", Some("http://127.0.0.1:1/m"), Some("127.0.0.1:1/m"));
    }

    #[test]
    fn what_cannot_be_started() {
        #[track_caller]
        fn check(spec: &Spec, expected: &str) {
            let error = read(spec, &LaunchInputs::example(None)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        check(
            &spec("sh -c true"),
            "command: its address is unknown; write {address} into its command, or give the address that it uses",
        );
        check(&spec("sh 'a"), "command: a quote is not closed in its command: sh 'a");
        check(&Spec { address: Some(([127, 0, 0, 1], 1).into()), ..spec(" ") }, "command: its command is empty");
        check(&Spec { command: None, ..spec("") }, "command: neither a command nor a program was given");
        check(&spec("no-such-program {address}"), "command: no such program: no-such-program");
        let error = metrics_address("https://127.0.0.1/metrics").unwrap_err().to_string();
        assert!(error.starts_with("metrics \"https://127.0.0.1/metrics\": "), "{error}");
    }
}
