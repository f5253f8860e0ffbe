//! Result files on disk: read with errors that help their reader, written so that a reader never sees a partial file.
//!
//! An experiment may take an hour, so its file is tried before it begins, and saved, complete, after each finished
//! part. JSON is laid out so that people and `diff` can read it, and large lists of numbers stay small.
//!
//! A list or object without nested ones is one line; any other has a line for each of its entries. A time series thus
//! has one line per point, where usual pretty-printing has nine, and half the bytes. Values and their order are
//! unchanged.

use super::run::Environment;
use crate::command_line::redacted;
use crate::error::{Error, Result};
use crate::output::{self, STANDARD_OUTPUT};
use crate::result::{Experiment, ResultFile, SCHEMA_VERSION};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// A larger file is not read: the largest sweep gives some ten megabytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Names standard input where a file is expected.
const STANDARD_INPUT: &str = "-";

impl ResultFile {
    /// A result written now by this program. Secrets among the arguments are left out.
    pub(crate) fn new(arguments: Vec<String>, environment: Environment, experiment: Experiment) -> ResultFile {
        ResultFile {
            schema_version: SCHEMA_VERSION,
            lab_version: env!("CARGO_PKG_VERSION").to_owned(),
            written_at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            arguments: redacted(arguments),
            environment,
            experiment,
        }
    }
}

/// The default name of a file: `tail-20261121-231500.json`.
pub(crate) fn default_path(experiment: &str) -> PathBuf {
    PathBuf::from(format!("{experiment}-{}.json", jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S")))
}

/// Its name in messages.
pub(crate) fn called(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// The result in a file, or on standard input, of any version.
pub(crate) fn read(path: &Path) -> Result<ResultFile> {
    let shown = called(path);
    let text = read_text(path).map_err(|error| error.context(&shown))?;
    parse(&text).map_err(|error| error.context(&shown))
}

/// The result in a text, of any version.
pub(crate) fn parse(text: &str) -> Result<ResultFile> {
    if text.trim().is_empty() {
        return Err("it is empty; the run that should have written it did not get that far".into());
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Error::new(if error.is_eof() {
            format!("it ends in the middle ({error}); it was cut off, for example by an incomplete copy: copy it again")
        } else {
            format!(
                "it is not JSON ({error}); give a file written with --json by `stillgate-lab load`, `tail` or `compare`"
            )
        })
    })?;
    serde_json::from_value(to_current(value)?).map_err(|error| {
        Error::new(format!(
            "it is not a result of stillgate-lab as this version knows it ({error}); was it edited by hand?"
        ))
    })
}

/// SHA-256 of a file that can be read again; input from a pipe cannot.
pub(crate) fn sha256(path: &Path) -> Option<String> {
    if is_standard_input(path) {
        return None;
    }
    let bytes = fs::metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| fs::read(path).ok())?;
    Some(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

fn read_text(path: &Path) -> Result<String> {
    if is_standard_input(path) {
        return bounded_text(io::stdin().lock());
    }
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    bounded_text(file)
}

/// The length of a pipe's content is known only after reading it.
fn bounded_text(source: impl io::Read) -> Result<String> {
    let mut text = String::new();
    match source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => Err(too_large()),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err("it is not text, and so not a result of stillgate-lab (a compressed file must be unpacked first)"
                .into())
        }
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::new(format!("cannot be read: {error}"))
}

fn too_large() -> Error {
    Error::new(format!("is larger than {} MiB, unlike any result file", FILE_BYTES_MAX >> 20))
}

/// The destination of a result, known to be writable.
#[derive(Debug)]
pub(crate) enum ResultWriter {
    /// A file that is replaced at each save.
    File(PathBuf),
    /// A pipe, a terminal or standard output: only the complete result goes there, once.
    Stream(PathBuf),
}

impl ResultWriter {
    /// Checks that `path` can be written, without leaving a trace. An existing file is unchanged until the first save.
    pub(crate) fn open(path: &Path) -> Result<ResultWriter> {
        if path == Path::new(STANDARD_OUTPUT) {
            return Ok(ResultWriter::Stream(path.to_owned()));
        }
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                Err(Error::new(format!("{}: is a directory; name a file in it", path.display())))
            }
            Ok(there) if there.is_file() => {
                // A link stays a link; its target is replaced.
                let path = fs::canonicalize(path).map_err(|error| unwritable(path, &error))?;
                File::options().append(true).open(&path).map_err(|error| unwritable(&path, &error))?;
                replaceable(&path).map(|()| ResultWriter::File(path))
            }
            Ok(_) => Ok(ResultWriter::Stream(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                replaceable(path).map(|()| ResultWriter::File(path.to_owned()))
            }
            Err(error) => Err(unwritable(path, &error)),
        }
    }

    /// Writes the state so far.
    pub(crate) fn save(&self, result: &ResultFile) -> Result {
        match self {
            ResultWriter::Stream(_) => Ok(()),
            ResultWriter::File(path) => {
                output::replace_file(path, &text(result)?).map_err(|error| unwritable(path, &error))
            }
        }
    }

    /// Writes the complete result.
    pub(crate) fn finish(self, result: &ResultFile) -> Result {
        match &self {
            ResultWriter::File(_) => self.save(result),
            ResultWriter::Stream(path) => {
                let text = text(result)?;
                let written = if path == Path::new(STANDARD_OUTPUT) {
                    io::stdout().lock().write_all(&text)
                } else {
                    File::options().write(true).open(path).and_then(|mut file| file.write_all(&text))
                };
                written.map_err(|error| unwritable(path, &error))
            }
        }
    }

    /// For messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            ResultWriter::File(path) | ResultWriter::Stream(path) => path,
        }
    }
}

fn replaceable(path: &Path) -> Result {
    if path.file_name().is_none() {
        return Err(Error::new(format!("{}: is not the name of a file", path.display())));
    }
    output::check_replaceable(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "its folder does not exist".to_owned(),
        _ => error.to_string(),
    };
    Error::new(format!("{}: cannot be written: {why}; choose another file with --json", path.display()))
}

fn text(result: &ResultFile) -> Result<Vec<u8>> {
    let compact = serde_json::to_string(result)
        .map_err(|error| Error::new(format!("the result cannot be written as JSON: {error}")))?;
    Ok(indent(&compact).into_bytes())
}

// Migrates result files of older layouts, one version at a time.
//
// A step turns the JSON of one version into that of the next, so an old file passes through all later ones and only
// one layout has types. Added fields need no step: they have a default. A step is needed for a field that moved or
// changed its meaning, and it is never changed once a release has written its version.

/// From one version to the next.
type Step = fn(Value) -> Result<Value>;

/// The first layout.
const SCHEMA_VERSION_FIRST: u32 = 1;

/// The step at index k leads from version `SCHEMA_VERSION_FIRST + k` to the one after.
const STEPS: &[Step] = &[];

const _: () = assert!(SCHEMA_VERSION == SCHEMA_VERSION_FIRST + STEPS.len() as u32, "each older version needs its step");

/// Converts the JSON of a result file of any version to [`SCHEMA_VERSION`].
fn to_current(file: Value) -> Result<Value> {
    walk(file, STEPS)
}

fn walk(mut file: Value, steps: &[Step]) -> Result<Value> {
    let newest = SCHEMA_VERSION_FIRST + steps.len() as u32;
    let version = version(&file, newest)?;
    for (step, from) in steps.iter().zip(SCHEMA_VERSION_FIRST..).skip((version - SCHEMA_VERSION_FIRST) as usize) {
        file = step(file).map_err(|error| error.context(format_args!("from schema version {from} to {}", from + 1)))?;
        file["schema_version"] = Value::from(from + 1);
    }
    Ok(file)
}

/// The version in a file, from the first to `newest`.
fn version(file: &Value, newest: u32) -> Result<u32> {
    let Some(version) = file.get("schema_version") else {
        return Err(Error::new(
            "it is JSON, but not a result of stillgate-lab (it has no \"schema_version\"); \
             give a file written with --json by `stillgate-lab load`, `tail` or `compare`",
        ));
    };
    match version.as_u64().and_then(|version| u32::try_from(version).ok()) {
        Some(version) if version > newest => Err(Error::new(format!(
            "its schema version is {version}, this stillgate-lab reads up to {newest}; use a newer stillgate-lab{}",
            file.get("lab_version")
                .and_then(Value::as_str)
                .map_or(String::new(), |by| format!(" (it was written by {by})")),
        ))),
        Some(version) if version >= SCHEMA_VERSION_FIRST => Ok(version),
        _ => Err(Error::new(format!(
            "its schema version is {version}, which does not exist ({SCHEMA_VERSION_FIRST} to {newest} are known)"
        ))),
    }
}

/// Spaces per level.
const INDENT: usize = 1;

/// Compact JSON, laid out, with a line feed at its end.
fn indent(compact: &str) -> String {
    let bytes = compact.as_bytes();
    let mut out = String::with_capacity(compact.len() + compact.len() / 4);
    let (mut depth, mut at) = (0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at);
                out.push_str(&compact[at..end]);
                at = end;
                continue;
            }
            b'{' | b'[' => match flat_end(bytes, at) {
                Some(end) => {
                    push_flat(&mut out, &compact[at..end]);
                    at = end;
                    continue;
                }
                None => {
                    depth += 1;
                    out.push(char::from(bytes[at]));
                    new_line(&mut out, depth);
                }
            },
            b'}' | b']' => {
                depth -= 1;
                new_line(&mut out, depth);
                out.push(char::from(bytes[at]));
            }
            b',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            b':' => out.push_str(": "),
            other => out.push(char::from(other)),
        }
        at += 1;
    }
    out.push('\n');
    out
}

/// The index after the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

/// The index after the list or object that begins at `start`, if it has no nested one.
fn flat_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => return None,
            b'}' | b']' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// Adds a space after each comma and colon outside strings.
fn push_flat(out: &mut String, flat: &str) {
    let bytes = flat.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = if bytes[at] == b'"' { string_end(bytes, at) } else { at + 1 };
        out.push_str(&flat[at..end]);
        if matches!(bytes[at], b',' | b':') {
            out.push(' ');
        }
        at = end;
    }
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', depth * INDENT));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tail::synthetic;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_no_result_is_refused_in_words() {
        let check = |text: &str, message: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        };
        let file = synthetic::file(1, 2, 0.0);
        let whole = String::from_utf8(super::text(&file).unwrap()).unwrap();
        let cut: String = whole.chars().take(whole.len() / 2).collect();
        check("", "did not get that far");
        check("Running 10s test @ http://127.0.0.1/", "not JSON");
        check(&cut, "cut off");
        check("[]", "not a result of stillgate-lab");
        check(&whole.replacen("\"schema_version\": 1", "\"schema_version\": 9", 1), "use a newer stillgate-lab");
        check(&whole.replacen("\"kind\": \"tail\"", "\"kind\": \"soak\"", 1), "unknown variant `soak`");
        check(&whole.replacen("\"pairs\": 2", "\"pairs\": \"two\"", 1), "was it edited by hand?");
        assert!(
            read(Path::new("/no/such/file.json"))
                .unwrap_err()
                .to_string()
                .starts_with("/no/such/file.json: cannot be read")
        );
    }

    #[test]
    fn a_file_that_is_not_text_or_too_large_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json.gz");
        fs::write(&path, [0x1f, 0x8b, 8, 0, 0xff]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("must be unpacked first"));
        // Zeros that take no room on the disk.
        File::options().write(true).open(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("larger than 1024 MiB"));
    }

    #[test]
    fn a_path_that_cannot_be_written_is_found_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &Path, message: &str| {
            let error = ResultWriter::open(path).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check(&folder.path().join("missing/result.json"), "its folder does not exist");
        check(folder.path(), "is a directory");
        check(Path::new(""), "not the name of a file");
        check(Path::new("/proc/result.json"), "choose another file with --json");
    }

    #[test]
    fn a_save_replaces_the_whole_file_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("result.json"), folder.path().join("link.json"));
        fs::write(&path, "older").unwrap();
        symlink(&path, &link).unwrap();
        let writer = ResultWriter::open(&link).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "older", "until there is something newer");
        for pairs in [1, 2] {
            let result = synthetic::file(1, pairs, 0.0);
            writer.save(&result).unwrap();
            assert_eq!(read(&path).unwrap(), result);
        }
        assert!(link.is_symlink());
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["link.json", "result.json"]);
    }

    #[test]
    fn a_stream_gets_only_the_whole() {
        let writer = ResultWriter::open(Path::new("/dev/null")).unwrap();
        assert!(matches!(writer, ResultWriter::Stream(_)));
        writer.save(&synthetic::file(1, 1, 0.0)).unwrap();
        writer.finish(&synthetic::file(1, 1, 0.0)).unwrap();
        assert!(matches!(ResultWriter::open(Path::new("-")).unwrap(), ResultWriter::Stream(_)));
    }

    #[test]
    fn raw_data_take_little_room() {
        let bytes = super::text(&synthetic::file(1, 10, 50_000.0)).unwrap().len();
        // Three histograms and fifty points each.
        assert!(bytes < 40 * 12_000, "{bytes} bytes for 40 blocks");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn a_result_comes_back_to_the_last_digit(seed: u64, pairs in 1usize..4, stall_us in 0.0..1e6) {
            let result = synthetic::file(seed, pairs, stall_us);
            let text = String::from_utf8(super::text(&result).unwrap()).unwrap();
            prop_assert_eq!(parse(&text).unwrap(), result);
        }
    }

    const RENAMED: Step = |mut file| {
        file["rate_hz"] = file["rate"].take();
        Ok(file)
    };
    const DOUBLED: Step = |mut file| {
        file["rate_hz"] = json!(file["rate_hz"].as_f64().ok_or("rate_hz: not a number")? * 2.0);
        Ok(file)
    };

    #[test]
    fn an_old_file_walks_through_all_later_versions() {
        let check = |file: Value, rate: f64| {
            let walked = walk(file, &[RENAMED, DOUBLED]).unwrap();
            assert_eq!((&walked["schema_version"], &walked["rate_hz"]), (&json!(3), &json!(rate)));
        };
        check(json!({ "schema_version": 1, "rate": 5.0 }), 10.0);
        check(json!({ "schema_version": 2, "rate_hz": 5.0 }), 10.0);
        check(json!({ "schema_version": 3, "rate_hz": 5.0 }), 5.0);
    }

    #[test]
    fn what_cannot_be_taken_along_is_said() {
        let check = |file: Value, message: &str| {
            let error = walk(file, &[RENAMED, DOUBLED]).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check(
            json!({ "schema_version": 4, "lab_version": "9.1.0" }),
            "up to 3; use a newer stillgate-lab (it was written by 9.1.0)",
        );
        check(json!({ "schema_version": 0 }), "which does not exist (1 to 3 are known)");
        check(json!({ "schema_version": "1" }), "which does not exist");
        check(json!({ "log": {} }), "not a result of stillgate-lab");
        check(json!([1, 2]), "not a result of stillgate-lab");
        check(json!({ "schema_version": 1, "rate": "fast" }), "from schema version 2 to 3: rate_hz: not a number");
    }

    #[test]
    fn only_what_holds_others_takes_lines() {
        let check = |value: Value, expect: Expect| expect.assert_eq(&indent(&value.to_string()));
        check(
            json!({}),
            expect![[r#"
            {}
        "#]],
        );
        check(
            json!({ "a": [1, -2.5e-7, null], "b": { "c": "},{\"[", "d": [{ "e": true, "f": "\\" }, { "e": [] }] }, "ü": "ß, : x" }),
            expect![[r#"
                {
                 "a": [1, -2.5e-7, null],
                 "b": {
                  "c": "},{\"[",
                  "d": [
                   {"e": true, "f": "\\"},
                   {
                    "e": []
                   }
                  ]
                 },
                 "ü": "ß, : x"
                }
            "#]],
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[\\PC\\\\\"{}\\[\\],:]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-z\"\\\\{]{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_says_the_same(value in any_json()) {
            let laid_out = indent(&value.to_string());
            prop_assert_eq!(serde_json::from_str::<Value>(&laid_out).unwrap(), value);
        }
    }
}
