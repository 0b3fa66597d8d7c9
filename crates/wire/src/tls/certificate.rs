//! What a certificate says of itself, in MongoDB's words.

use std::fmt::Write;
use std::str::FromStr;
use std::time::SystemTime;

use x509_cert::Certificate;
use x509_cert::attr::{AttributeTypeAndValue, AttributeValue};
use x509_cert::der::{Decode, Encode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::name::RdnSequence;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateDetails {
    /// As RFC 2253 writes it, `CN=a,O=b`: the name of a user who proves itself with it.
    pub subject: String,
    pub issuer: String,
    /// By which members of a cluster know each other.
    pub cluster: ClusterName,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl CertificateDetails {
    /// `None`: not a certificate.
    pub fn read(der: &[u8]) -> Option<CertificateDetails> {
        let certificate = Certificate::from_der(der).ok()?.tbs_certificate;
        Some(CertificateDetails {
            subject: rfc2253(&certificate.subject),
            issuer: rfc2253(&certificate.issuer),
            cluster: ClusterName::of(&certificate.subject),
            not_before: certificate.validity.not_before.to_system_time(),
            not_after: certificate.validity.not_after.to_system_time(),
        })
    }
}

/// The organizations (`O`), their units (`OU`) and domain components (`DC`) of a subject. The
/// certificates of a cluster's members have the same ones, in any order, and at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterName(Vec<(String, String)>);

impl ClusterName {
    fn of(name: &RdnSequence) -> ClusterName {
        let attributes = name.0.iter().flat_map(|part| part.0.iter());
        let mut known: Vec<(String, String)> = attributes
            .filter_map(|attribute| {
                let oid = attribute.oid.to_string();
                let value = text(&attribute.value).unwrap_or_else(|| bytes(&attribute.value));
                CLUSTER_ATTRIBUTES.contains(&&*oid).then_some((oid, value))
            })
            .collect();
        known.sort();
        ClusterName(known)
    }

    /// Of a subject as [`CertificateDetails`] write it; that of none if it is not one.
    pub fn read(subject: &str) -> ClusterName {
        RdnSequence::from_str(subject)
            .map_or_else(|_| ClusterName::default(), |name| Self::of(&name))
    }

    pub fn is_that_of(&self, other: &ClusterName) -> bool {
        !self.0.is_empty() && self == other
    }
}

const CLUSTER_ATTRIBUTES: [&str; 3] = ["0.9.2342.19200300.100.1.25", "2.5.4.10", "2.5.4.11"];

/// The most specific attribute comes first, other than in the certificate.
fn rfc2253(name: &RdnSequence) -> String {
    let mut out = String::new();
    for part in name.0.iter().rev() {
        let mut separator = if out.is_empty() { "" } else { "," };
        for attribute in part.0.as_slice().iter().rev() {
            out.push_str(separator);
            separator = "+";
            write_attribute(&mut out, attribute);
        }
    }
    out
}

fn write_attribute(out: &mut String, attribute: &AttributeTypeAndValue) {
    let oid = attribute.oid.to_string();
    let known = SHORT_NAMES.iter().find(|(known, _)| *known == oid);
    out.push_str(known.map_or(&oid, |(_, name)| name));
    out.push('=');
    match text(&attribute.value).filter(|_| known.is_some()) {
        Some(text) => write_escaped(out, &text),
        None => out.push_str(&bytes(&attribute.value)),
    }
}

fn bytes(value: &AttributeValue) -> String {
    let mut out = "#".to_owned();
    for byte in value.to_der().unwrap_or_default() {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02X}");
    }
    out
}

/// The attributes that have names; others are shown by their numbers, with their values' bytes.
/// MongoDB has the names from OpenSSL.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
    ("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
    ("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
    (COMMON_NAME, "CN"),
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
    ("2.5.4.16", "postalAddress"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.97", "organizationIdentifier"),
];
const COMMON_NAME: &str = "2.5.4.3";

fn text(value: &AttributeValue) -> Option<String> {
    let bytes = value.value();
    match value.tag() {
        Tag::Utf8String
        | Tag::PrintableString
        | Tag::Ia5String
        | Tag::NumericString
        | Tag::VisibleString => String::from_utf8(bytes.to_vec()).ok(),
        // Whoever still writes it means Latin-1.
        Tag::TeletexString => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
        Tag::BmpString => {
            let units = bytes.chunks_exact(2);
            let units = units.map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            String::from_utf16(&units.collect::<Vec<_>>()).ok()
        }
        _ => None,
    }
}

/// What would be read as a part of the syntax, and every byte that is not printable ASCII.
fn write_escaped(out: &mut String, text: &str) {
    let last = text.len().wrapping_sub(1);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b'#' if at == 0 => out.push_str("\\#"),
            b' ' if at == 0 || at == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(out, "\\{byte:02X}")),
        }
    }
}

/// Whether a certificate without alternative names, as they were made before 2000, is the host's
/// by its common name.
pub(crate) fn is_named_by_common_name(der: &[u8], host: &str) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else {
        return false;
    };
    let certificate = certificate.tbs_certificate;
    if !matches!(certificate.get::<SubjectAltName>(), Ok(None)) {
        return false;
    }
    let attributes = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let mut names = attributes.filter(|attribute| attribute.oid.to_string() == COMMON_NAME);
    let Some(name) = names.next_back().and_then(|name| text(&name.value)) else {
        return false;
    };
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    // `*` stands for one whole label of a name, not for a part of an address.
    let parent = host.split_once('.').map(|(_, parent)| parent);
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    match (name.strip_prefix("*."), parent) {
        (Some(pattern), Some(parent)) => {
            !is_address && pattern.contains('.') && pattern.eq_ignore_ascii_case(parent)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    fn certificate(name: &[(DnType, &str)], alternative: &[&str]) -> Vec<u8> {
        let alternative: Vec<String> = alternative.iter().map(|&name| name.to_owned()).collect();
        let mut parameters = CertificateParams::new(alternative).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        for (kind, value) in name {
            let value = DnValue::Utf8String((*value).to_owned());
            parameters.distinguished_name.push(kind.clone(), value);
        }
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_written_as_mongodb_does() {
        let uid = DnType::CustomDnType(vec![0, 9, 2342, 19200300, 100, 1, 1]);
        let title = DnType::CustomDnType(vec![2, 5, 4, 12]);
        let der = certificate(
            &[
                (DnType::CountryName, "DE"),
                (DnType::LocalityName, "München"),
                (DnType::OrganizationName, "Banyan, \"Inc\" <a+b>; c\\d"),
                (uid, "#ann"),
                (title, "x"),
                (DnType::CustomDnType(vec![1, 2, 3, 4]), "x"),
                (DnType::CommonName, " a#b  "),
            ],
            &["localhost"],
        );
        let details = CertificateDetails::read(&der).unwrap();
        assert_eq!(
            details.subject,
            "CN=\\ a#b \\ ,1.2.3.4=#0C0178,title=x,UID=\\#ann,\
             O=Banyan\\, \\\"Inc\\\" \\<a\\+b\\>\\; c\\\\d,L=M\\C3\\BCnchen,C=DE"
        );
        assert_eq!(details.issuer, details.subject);
        assert!(details.not_before < SystemTime::now() && details.not_after > SystemTime::now());
        assert_eq!(CertificateDetails::read(&der[1..]), None);
    }

    #[test]
    fn members_have_the_same_organization() {
        let unit = || DnType::OrganizationalUnitName;
        let name = |parts: &[(DnType, &str)]| {
            let der = certificate(parts, &["localhost"]);
            CertificateDetails::read(&der).unwrap().cluster
        };
        let own = name(&[
            (DnType::OrganizationName, "Acme, \"Inc\""),
            (unit(), "db"),
            (DnType::CommonName, "a"),
        ]);
        let same = name(&[
            (DnType::CountryName, "DE"),
            (unit(), "db"),
            (DnType::CommonName, "b"),
            (DnType::OrganizationName, "Acme, \"Inc\""),
        ]);
        assert!(same.is_that_of(&own));
        let people = name(&[
            (DnType::OrganizationName, "Acme, \"Inc\""),
            (unit(), "people"),
            (DnType::CommonName, "a"),
        ]);
        assert!(!people.is_that_of(&own));
        let fewer = name(&[(DnType::OrganizationName, "Acme, \"Inc\"")]);
        assert!(!fewer.is_that_of(&own) && !own.is_that_of(&fewer));
        let none = name(&[(DnType::CommonName, "a")]);
        assert!(!none.is_that_of(&none), "everybody would be a member");

        let read = ClusterName::read("CN=x,OU=db,O=Acme\\, \\\"Inc\\\"");
        assert!(read.is_that_of(&own), "{read:?}");
        assert!(!ClusterName::read("CN=x,OU=db,O=Acme").is_that_of(&own));
        assert!(!ClusterName::read("nobody").is_that_of(&own));
    }

    #[test]
    fn common_names_count_where_there_are_no_others() {
        let named = |name: &str, alternative: &[&str], host: &str| {
            let der = certificate(&[(DnType::CommonName, name)], alternative);
            is_named_by_common_name(&der, host)
        };
        assert!(named("db1.example.net", &[], "DB1.example.net"));
        assert!(named("*.example.net", &[], "db1.example.net"));
        assert!(named("127.0.0.1", &[], "127.0.0.1"));
        assert!(!named("*.0.0.1", &[], "127.0.0.1"));
        assert!(!named("*.example.net", &[], "a.db1.example.net"));
        assert!(!named("*.net", &[], "example.net"));
        assert!(!named("db1", &["db2"], "db1"));
        assert!(!named("db1", &[], "db2"));
    }
}
