//! The JSON of etcd's gateway: protobuf's mapping, so 64-bit numbers are strings, bytes are Base64, and zero values are
//! left out.
//!
//! Shapes only. Unknown fields are ignored: newer versions add some.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes, in Base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bytes64(pub(crate) Vec<u8>);

/// A 64-bit number, in a string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) u64);

#[derive(Debug, Default, Serialize)]
pub(crate) struct RangeRequest {
    pub(crate) key: Bytes64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) range_end: Option<Bytes64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_mod_revision: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) keys_only: bool,
}

/// A response to a request.
pub(crate) trait EtcdResponse: DeserializeOwned {
    /// The cluster that it comes from; 0 if it does not say so, which every etcd does. `None`: not every etcd says it here.
    fn cluster(&self) -> Option<u64>;
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EtcdHeader {
    pub(crate) cluster_id: Number,
    pub(crate) revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub(crate) key: Bytes64,
    pub(crate) value: Bytes64,
    pub(crate) create_revision: Number,
    pub(crate) mod_revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeResponse {
    pub(crate) header: EtcdHeader,
    pub(crate) kvs: Vec<KeyValue>,
    pub(crate) more: bool,
    /// How many keys are in the range, whatever the limit and the least revision.
    pub(crate) count: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchRequest {
    pub(crate) create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchCreate {
    pub(crate) key: Bytes64,
    pub(crate) range_end: Bytes64,
    pub(crate) start_revision: Number,
    pub(crate) progress_notify: bool,
}

/// One line of a watch's stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchLine {
    pub(crate) result: Option<WatchResponse>,
    pub(crate) error: Option<EtcdErrorBody>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchResponse {
    pub(crate) header: EtcdHeader,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    pub(crate) compact_revision: Number,
    pub(crate) cancel_reason: String,
    pub(crate) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchEvent {
    /// `DELETE`, or absent.
    pub(crate) r#type: String,
    pub(crate) kv: KeyValue,
}

#[derive(Debug, Serialize)]
pub(crate) struct TxnRequest {
    pub(crate) compare: Vec<Compare>,
    pub(crate) success: Vec<EtcdOperation>,
    pub(crate) failure: Vec<EtcdOperation>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Compare {
    pub(crate) key: Bytes64,
    /// All keys up to this one are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) range_end: Option<Bytes64>,
    pub(crate) target: &'static str,
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mod_revision: Option<Number>,
}

#[derive(Debug, Serialize)]
pub(crate) enum EtcdOperation {
    #[serde(rename = "request_put")]
    Put {
        key: Bytes64,
        value: Bytes64,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<Number>,
        prev_kv: bool,
    },
    #[serde(rename = "request_delete_range")]
    Delete { key: Bytes64 },
    #[serde(rename = "request_range")]
    Range(RangeRequest),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TxnResponse {
    pub(crate) header: EtcdHeader,
    pub(crate) succeeded: bool,
    /// One for each operation.
    pub(crate) responses: Vec<OperationResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OperationResponse {
    pub(crate) response_put: Option<PutResponse>,
    pub(crate) response_delete_range: Option<DeleteResponse>,
    pub(crate) response_range: Option<RangeResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PutResponse {
    pub(crate) prev_kv: Option<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeleteResponse {
    pub(crate) deleted: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct AlarmRequest {
    pub(crate) action: &'static str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AlarmResponse {
    pub(crate) alarms: Vec<AlarmMember>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AlarmMember {
    /// `NOSPACE`, `CORRUPT`.
    pub(crate) alarm: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeaseRequest {
    #[serde(rename = "TTL")]
    pub(crate) ttl: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseResponse {
    pub(crate) header: EtcdHeader,
    #[serde(rename = "ID")]
    pub(crate) id: Number,
}

#[derive(Serialize)]
pub(crate) struct AuthRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) password: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AuthResponse {
    pub(crate) token: String,
}

/// An error, in the forms of the gateway's versions: a text `error` next to `code`; `message` next to `code`; in a
/// stream `grpc_code` and `message`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EtcdErrorBody {
    pub(crate) code: Option<u32>,
    pub(crate) grpc_code: Option<u32>,
    pub(crate) message: Option<String>,
    pub(crate) error: Option<String>,
}

macro_rules! responses {
    ($($response:ty),*) => {
        $(impl EtcdResponse for $response {
            fn cluster(&self) -> Option<u64> {
                Some(self.header.cluster_id.0)
            }
        })*
    };
}

responses!(RangeResponse, TxnResponse, LeaseResponse);

impl EtcdResponse for AuthResponse {
    fn cluster(&self) -> Option<u64> {
        None
    }
}

/// etcd 3.4 leaves its header out.
impl EtcdResponse for AlarmResponse {
    fn cluster(&self) -> Option<u64> {
        None
    }
}

impl EtcdErrorBody {
    /// gRPC's code, or 2 ("unknown").
    pub(crate) fn code(&self) -> u32 {
        self.code.or(self.grpc_code).unwrap_or(2)
    }

    /// The text on one line.
    pub(crate) fn into_text(self) -> String {
        let text = self.message.or(self.error).unwrap_or_else(|| "an error without a text".to_owned());
        text.replace(char::is_control, "\u{fffd}")
    }
}

impl From<Vec<u8>> for Bytes64 {
    fn from(bytes: Vec<u8>) -> Bytes64 {
        Bytes64(bytes)
    }
}

impl Serialize for Bytes64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes64, D::Error> {
        struct Base64;
        impl Visitor<'_> for Base64 {
            type Value = Bytes64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("Base64")
            }

            // The error does not repeat the text: it may be a secret.
            fn visit_str<E: Error>(self, text: &str) -> Result<Bytes64, E> {
                STANDARD.decode(text).map(Bytes64).map_err(|_| E::custom("bytes that are not Base64"))
            }
        }
        deserializer.deserialize_str(Base64)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Decimal;
        impl Visitor<'_> for Decimal {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of 64 bits")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }
        }
        deserializer.deserialize_any(Decimal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_protobufs_json() {
        let range = RangeRequest {
            key: b"/a/".to_vec().into(),
            range_end: Some(b"/a0".to_vec().into()),
            limit: Some(Number(2)),
            ..RangeRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![Compare {
                range_end: None,
                key: b"/a/1".to_vec().into(),
                target: "MOD",
                result: "EQUAL",
                create_revision: None,
                mod_revision: Some(Number(u64::MAX)),
            }],
            success: vec![EtcdOperation::Delete { key: b"/a/1".to_vec().into() }],
            failure: vec![EtcdOperation::Range(range)],
        };
        assert_eq!(
            serde_json::to_string(&txn).unwrap(),
            r#"{"compare":[{"key":"L2EvMQ==","target":"MOD","result":"EQUAL","mod_revision":"18446744073709551615"}],"success":[{"request_delete_range":{"key":"L2EvMQ=="}}],"failure":[{"request_range":{"key":"L2Ev","range_end":"L2Ew","limit":"2"}}]}"#
        );
    }

    #[test]
    fn responses_of_all_versions_are_read() {
        let check = |text: &str, code: u32, message: &str| {
            let refusal: EtcdErrorBody = serde_json::from_str(text).unwrap();
            assert_eq!((refusal.code(), &*refusal.into_text()), (code, message), "{text}");
        };
        check(r#"{"error":"a","message":"a","code":11}"#, 11, "a");
        check(r#"{"code":11,"message":"a","details":[]}"#, 11, "a");
        check(r#"{"error":"a\nb","code":16}"#, 16, "a\u{fffd}b");
        check("{}", 2, "an error without a text");
        let line = r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"x"}}"#;
        let line: WatchLine = serde_json::from_str(line).unwrap();
        assert_eq!(line.error.map(|error| error.code()), Some(14));
        let line = r#"{"result":{"header":{"revision":"5"},"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":5}}]}}"#;
        let line: WatchLine = serde_json::from_str(line).unwrap();
        let event = &line.result.unwrap().events[0];
        assert_eq!((&*event.r#type, &*event.kv.key.0, event.kv.mod_revision), ("DELETE", &b"a"[..], Number(5)));
        assert!(serde_json::from_str::<KeyValue>(r#"{"key":"$"}"#).is_err());
    }
}
