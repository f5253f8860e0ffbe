//! A client's certificate for variables, in the forms that nginx uses.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::CertificateDer;
use std::fmt::Write;
use x509_parser::asn1_rs::{Any, Class, Tag, ToDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The properties of a client's certificate that variables expose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its distinguished name by RFC 2253, the most specific part first, as nginx's `$ssl_client_s_dn`.
    pub subject: String,
    /// Its serial number in upper-case hex, as nginx's `$ssl_client_serial`.
    pub serial: String,
    /// SHA-1 of it in lower-case hex, as nginx's `$ssl_client_fingerprint`.
    pub fingerprint: String,
    /// Its last second, since 1970.
    pub not_after_seconds: i64,
}

/// Reads the first certificate of the chain that a client has sent; `None` for an empty chain or an unreadable
/// certificate.
pub fn client_certificate(chain: &[CertificateDer<'_>]) -> Option<ClientCertificate> {
    let certificate = chain.first()?;
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let serial = match parsed.raw_serial() {
        // The zero byte that makes a serial number positive in DER is not part of it.
        [0, rest @ ..] if !rest.is_empty() => rest,
        serial => serial,
    };
    let fingerprint = digest(&SHA1_FOR_LEGACY_USE_ONLY, certificate);
    Some(ClientCertificate {
        subject: distinguished_name(parsed.subject()),
        serial: serial.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02X}")),
        fingerprint: fingerprint.as_ref().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}")),
        not_after_seconds: parsed.validity().not_after.timestamp(),
    })
}

/// In the form of OpenSSL's `XN_FLAG_RFC2253`: the last part first, values as UTF-8 with other characters than ASCII
/// escaped.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let parts: Vec<_> = name.iter_rdn().collect();
    let mut out = String::new();
    for part in parts.into_iter().rev() {
        let attributes: Vec<_> = part.iter().collect();
        for (index, attribute) in attributes.into_iter().rev().enumerate() {
            match index {
                0 if out.is_empty() => {}
                0 => out.push(','),
                _ => out.push('+'),
            }
            write_attribute(&mut out, attribute);
        }
    }
    out
}

fn write_attribute(out: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let oid = attribute.attr_type().to_id_string();
    let name = NAMES.iter().find(|(known, _)| *known == oid).map(|(_, name)| *name);
    let value = attribute.attr_value();
    match (name, text(value)) {
        (Some(name), Some(text)) => {
            out.push_str(name);
            out.push('=');
            write_escaped(out, &text);
        }
        (name, _) => {
            out.push_str(name.unwrap_or(&oid));
            out.push_str("=#");
            for byte in value.to_der_vec().unwrap_or_default() {
                write_hex(out, byte);
            }
        }
    }
}

/// OpenSSL's short names of attributes: those of RFC 5280 and of certificates for organisations and persons.
const NAMES: [(&str, &str); 23] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// The text of a value of one of ASN.1's text types.
fn text(value: &Any<'_>) -> Option<String> {
    if value.class() != Class::Universal {
        return None;
    }
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString | Tag::VisibleString => {
            Some(String::from_utf8_lossy(value.data).into_owned())
        }
        // In practice Latin 1, which is what OpenSSL takes it for.
        Tag::T61String => Some(value.data.iter().map(|byte| char::from(*byte)).collect()),
        Tag::BmpString => {
            let units = value.data.chunks(2).map(|unit| unit.iter().fold(0, |unit, byte| unit << 8 | u16::from(*byte)));
            Some(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
        }
        _ => None,
    }
}

fn write_escaped(out: &mut String, text: &str) {
    let last = text.len().saturating_sub(1);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => out.extend(['\\', char::from(byte)]),
            b'#' if index == 0 => out.push_str("\\#"),
            b' ' if index == 0 || index == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                out.push('\\');
                write_hex(out, byte);
            }
        }
    }
}

fn write_hex(out: &mut String, byte: u8) {
    // Writing to a `String` cannot fail.
    let _ = write!(out, "{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{ca, client_params, issue};
    use proptest::prelude::*;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn a_certificate_is_described_as_openssl_describes_it() {
        let chain = CertificateDer::from_pem_slice(include_bytes!("../tests/data/subject.pem")).unwrap();
        // The output of `openssl x509 -subject -nameopt RFC2253 -serial -fingerprint`.
        let expected = ClientCertificate {
            subject: "2.3.4.5=#0C07756E6B6E6F776E,serialNumber=42,DC=example,UID=u1,emailAddress=a@b.example+CN=J\\C3\\B6rg,\
                      OU=\\#hash,O=Smith\\, \\\"Jones\\\" \\+ Co\\; \\<x\\>\\\\y,L=\\ Leading#,ST=Baden-W\\C3\\BCrttemberg,C=DE"
                .to_owned(),
            serial: "F00D".to_owned(),
            fingerprint: "71e0265f7910bec418892a7eaa5ddf0eb2e76a14".to_owned(),
            not_after_seconds: 4_948_915_331,
        };
        assert_eq!(client_certificate(&[chain]), Some(expected));
        assert_eq!(client_certificate(&[]), None);
        assert_eq!(client_certificate(&[CertificateDer::from(b"\x30\x00".to_vec())]), None);
    }

    #[test]
    fn what_could_be_mistaken_is_escaped() {
        let check = |text: &str, expected: &str| {
            let mut out = String::new();
            write_escaped(&mut out, text);
            assert_eq!(out, expected, "{text:?}");
        };
        check("", "");
        check(" ", "\\ ");
        check("  ", "\\ \\ ");
        check("a b ", "a b\\ ");
        check("#a#", "\\#a#");
        check("a,CN=b", "a\\,CN=b");
        check("a\r\nb\0\u{7f}", "a\\0D\\0Ab\\00\\7F");
    }

    proptest! {
        /// A subject goes into heads and logs: it is one line of ASCII, whatever a client's certificate has in it.
        #[test]
        fn a_subject_is_one_line(name in any::<String>()) {
            let (cert, _) = issue(&client_params(&name), &ca("root"));
            let told = client_certificate(&[CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()]).unwrap();
            prop_assert!(told.subject.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", told.subject);
        }
    }
}
