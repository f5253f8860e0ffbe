//! Maps documents to etcd's keys: below a prefix, as APISIX's Admin API writes them.
//!
//! Only markers of directories (`/apisix/routes/`, value `init_dir`), and reports of APISIX's data planes about themselves
//! are skipped. Any other key is a document's, whatever it looks like: APISIX serves `/apisix/routes/a/b`, too, and a route
//! under `/apisix/routes/`, so it is for the reader of documents to refuse what it cannot use.

use super::options::OptionsError;
use crate::document::Key;
use std::borrow::Cow;

/// Most bytes of a prefix.
const PREFIX_BYTES_MAX: usize = 1024;

/// Data planes of APISIX write `data_plane/server_info/ID` there: a report, not configuration.
const REPORTS: &str = "data_plane/";

/// Where they are, one key for each node.
const NODES: &str = "data_plane/server_info/";

/// Begins the part of a key that is not text: the replacement character for bytes that are not text.
const NO_TEXT: char = char::REPLACEMENT_CHARACTER;

/// What APISIX writes under the name of a directory; etcd may also have an empty value there.
const DIRECTORY: &[u8] = b"init_dir";

/// The keys of one prefix.
#[derive(Debug)]
pub(crate) struct KeyLayout {
    /// Ends with a slash.
    folder: String,
}

impl KeyLayout {
    pub(crate) fn new(prefix: &str) -> Result<KeyLayout, OptionsError> {
        let prefix = prefix.trim_end_matches('/');
        let refused = |message: &str| Err(OptionsError::new("prefix", message));
        if prefix.is_empty() {
            return refused("it is empty; write the prefix that APISIX uses, /apisix by default");
        }
        if prefix.len() > PREFIX_BYTES_MAX {
            return refused("it is longer than 1024 bytes");
        }
        if prefix.chars().any(char::is_control) {
            return refused("it contains a control character");
        }
        Ok(KeyLayout { folder: format!("{prefix}/") })
    }

    pub(crate) fn prefix(&self) -> &str {
        self.folder.trim_end_matches('/')
    }

    /// The range of all keys below the prefix, the second not included.
    pub(crate) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let mut end = self.prefix().as_bytes().to_vec();
        end.push(b'/' + 1);
        (self.folder.as_bytes().to_vec(), end)
    }

    /// The range of all keys below a path that ends with a slash, the second not included.
    pub(crate) fn range_below(&self, path: &str) -> (Vec<u8>, Vec<u8>) {
        let start = [self.folder.as_bytes(), path.as_bytes()].concat();
        let mut end = start.clone();
        end.pop();
        end.push(b'/' + 1);
        (start, end)
    }

    /// The etcd key of a document.
    pub(crate) fn name_of(&self, key: &Key) -> Vec<u8> {
        let no_text = key.as_str().split_once(NO_TEXT).and_then(|(text, digits)| Some((text, bytes_of(digits)?)));
        match no_text {
            Some((text, bytes)) => [self.folder.as_bytes(), text.as_bytes(), &bytes].concat(),
            None => [self.folder.as_bytes(), key.as_str().as_bytes()].concat(),
        }
    }

    /// The range of all reports of nodes, the second not included.
    pub(crate) fn reports(&self) -> (Vec<u8>, Vec<u8>) {
        self.range_below(NODES)
    }

    /// The etcd key of a node's report.
    pub(crate) fn name_of_report(&self, node: &str) -> Vec<u8> {
        [self.folder.as_bytes(), NODES.as_bytes(), node.as_bytes()].concat()
    }

    /// The document of an etcd key; `None` if it is not a document's.
    pub(crate) fn key_of(&self, name: &[u8]) -> Option<Key> {
        let path = path_of(name.strip_prefix(self.folder.as_bytes())?);
        (!path.starts_with(REPORTS)).then(|| Key::from_etcd_path(&path))
    }
}

/// Whether a value marks a directory, so that its key has no document.
pub(crate) fn is_directory(key: &Key, value: &[u8]) -> bool {
    key.id().is_empty() && (value.is_empty() || value == DIRECTORY)
}

/// A path below the prefix as text. If it is not, its id, or what follows the text of its collection, is written in hexadecimal
/// digits, so that each is unique.
fn path_of(path: &[u8]) -> Cow<'_, str> {
    let error = match std::str::from_utf8(path) {
        Ok(path) => return Cow::Borrowed(path),
        Err(error) => error,
    };
    let id = path.iter().position(|byte| *byte == b'/').map_or(usize::MAX, |slash| slash + 1);
    let (text, bytes) = path.split_at(id.min(error.valid_up_to()));
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Cow::Owned(format!("{}{NO_TEXT}{digits}", String::from_utf8_lossy(text)))
}

/// The bytes in hexadecimal digits; `None`: there are none, or other characters.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_whole = !digits.is_empty() && digits.len().is_multiple_of(2);
    is_whole.then(|| digits.as_bytes().chunks(2).map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_distinguished_from_other_keys() {
        let layout = KeyLayout::new("/apisix/").unwrap();
        let check = |name: &[u8], expected: Option<&str>| {
            let key = layout.key_of(name);
            assert_eq!(key.as_ref().map(Key::as_str), expected, "{}", String::from_utf8_lossy(name));
            if let Some(key) = key {
                assert_eq!(layout.name_of(&key), name);
            }
        };
        check(b"/apisix/routes/1", Some("routes/1"));
        check(b"/apisix/consumers/jack/credentials/1", Some("consumers/jack/credentials/1"));
        check(b"/apisix/routes/", Some("routes/"));
        check(b"/apisix/routes", Some("routes"));
        check(b"/apisix/", Some(""));
        check(b"/apisix//routes/1", Some("/routes/1"));
        check(b"/apisix/data_plane/server_info/0a", None);
        check(b"/apisix/routes/a/b/c/d/e", Some("routes/a/b/c/d/e"));
        check(b"/apisix/routes/a/", Some("routes/a/"));
        check(b"/apisix/routes//a", Some("routes//a"));
        check(b"/apisix/routes/..", Some("routes/.."));
        check(b"/apisix/routes/\xff", Some("routes/\u{fffd}ff"));
        check(b"/apisix/routes/a/\xfe", Some("routes/\u{fffd}612ffe"));
        check(b"/apisix/routes/\xef\xbf\xbd", Some("routes/\u{fffd}"));
        check(b"/apisix/\xff/a", Some("\u{fffd}ff2f61"));
        check(b"/apisix/routes\xff/a", Some("routes\u{fffd}ff2f61"));
        check(b"/other/routes/1", None);
        assert_eq!(layout.range(), (b"/apisix/".to_vec(), b"/apisix0".to_vec()));
        assert_eq!(layout.range_below("routes/"), (b"/apisix/routes/".to_vec(), b"/apisix/routes0".to_vec()));
        assert_eq!(layout.prefix(), "/apisix");
    }

    #[test]
    fn a_marker_of_a_directory_is_not_a_document() {
        let check = |path: &str, value: &str, expected: bool| {
            assert_eq!(is_directory(&Key::from_etcd_path(path), value.as_bytes()), expected, "{path:?} {value:?}");
        };
        for path in ["routes/", "routes", "", "consumers/", "others/"] {
            check(path, "", true);
            check(path, "init_dir", true);
            for value in ["{}", "{\"uri\": \"/*\"}", "init_dir ", " ", "null", "\"init_dir\""] {
                check(path, value, false);
            }
        }
        for path in ["routes/1", "routes//", "/routes", "routes/a/"] {
            check(path, "init_dir", false);
            check(path, "", false);
        }
    }

    #[test]
    fn a_prefix_is_checked() {
        for prefix in ["", "/", "//", "/a\nb", &"x".repeat(PREFIX_BYTES_MAX + 1)] {
            assert_eq!(KeyLayout::new(prefix).unwrap_err().option, "prefix", "{prefix:?}");
        }
        assert_eq!(KeyLayout::new("apisix").unwrap().prefix(), "apisix");
    }
}
