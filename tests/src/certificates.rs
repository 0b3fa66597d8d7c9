//! Certificates for tests: an authority of their own, and files as operators have them.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use tempfile::TempDir;

/// An authority, and a folder with the certificates that it has signed. `ca.pem` is its own.
pub struct Certificates {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub fn new() -> Self {
        let mut parameters = named("Authority");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let own = parameters.self_signed(&key).expect("it signs itself");
        let certificates = Self {
            folder: tempfile::tempdir().expect("a temporary directory"),
            issuer: Issuer::new(parameters, key),
        };
        certificates.write("ca.pem", &own.pem());
        certificates
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// The path as a flag or an address takes it.
    pub fn at(&self, file: &str) -> String {
        self.path(file)
            .to_str()
            .expect("a path in UTF-8")
            .to_owned()
    }

    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).expect("the file is written");
    }

    /// A certificate and its key in one file, for the loopback interface.
    pub fn server(&self, file: &str, name: &str) {
        self.issue(file, for_hosts(name, &["localhost", "127.0.0.1"]));
    }

    pub fn client(&self, file: &str, name: &str) {
        self.issue(file, named(name));
    }

    pub fn issue(&self, file: &str, parameters: CertificateParams) {
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters
            .signed_by(&key, &self.issuer)
            .expect("it is signed");
        self.write(file, &(certificate.pem() + &key.serialize_pem()));
    }

    /// A certificate for a key that is there already, without it.
    pub fn certify(&self, key: &KeyPair, parameters: CertificateParams) -> String {
        parameters
            .signed_by(key, &self.issuer)
            .expect("it is signed")
            .pem()
    }

    /// A list of the certificates that count no longer.
    pub fn revoke(&self, file: &str, serials: &[u64]) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2400, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("it is signed");
        self.write(file, &list.pem().expect("it is written"));
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

/// `CN=name,O=Banyan`.
pub fn named(name: &str) -> CertificateParams {
    for_hosts(name, &[])
}

pub fn for_hosts(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut parameters = CertificateParams::new(hosts).expect("names of hosts");
    parameters.distinguished_name = DistinguishedName::new();
    let name_of = &mut parameters.distinguished_name;
    name_of.push(DnType::OrganizationName, "Banyan");
    name_of.push(DnType::CommonName, name);
    parameters
}
