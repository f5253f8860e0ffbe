//! Migrates result files of older layouts, one version at a time.
//!
//! A step turns the JSON of one version into that of the next, so an old file passes through all later ones and only
//! one layout has types. Added fields need no step: they have a default. A step is needed for a field that moved or
//! changed its meaning, and it is never changed once a release has written its version.

use crate::error::{Error, Result};
use crate::result::SCHEMA_VERSION;
use serde_json::Value;

/// From one version to the next.
type Step = fn(Value) -> Result<Value>;

/// The first layout.
const SCHEMA_VERSION_FIRST: u32 = 1;

/// The step at index k leads from version `SCHEMA_VERSION_FIRST + k` to the one after.
const STEPS: &[Step] = &[];

const _: () = assert!(SCHEMA_VERSION == SCHEMA_VERSION_FIRST + STEPS.len() as u32, "each older version needs its step");

/// Converts the JSON of a result file of any version to [`SCHEMA_VERSION`].
pub(crate) fn to_current(file: Value) -> Result<Value> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
