//! How the members of a cluster prove to each other that they are that.

use clap::ValueEnum;

/// `--clusterAuthMode`: the steps by which a cluster goes from a key file to certificates, member by
/// member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ClusterAuthMode {
    /// The key file, and nothing else.
    #[default]
    #[value(name = "keyFile")]
    KeyFile,
    /// The key file; from others a certificate as well.
    #[value(name = "sendKeyFile")]
    SendKeyFile,
    /// The certificate; from others the key file as well.
    #[value(name = "sendX509")]
    SendX509,
    /// The certificate, and nothing else.
    #[value(name = "x509")]
    X509,
}

impl ClusterAuthMode {
    pub const ALL: [ClusterAuthMode; 4] = [
        ClusterAuthMode::KeyFile,
        ClusterAuthMode::SendKeyFile,
        ClusterAuthMode::SendX509,
        ClusterAuthMode::X509,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ClusterAuthMode::KeyFile => "keyFile",
            ClusterAuthMode::SendKeyFile => "sendKeyFile",
            ClusterAuthMode::SendX509 => "sendX509",
            ClusterAuthMode::X509 => "x509",
        }
    }

    pub fn takes_key_file(self) -> bool {
        self != ClusterAuthMode::X509
    }

    pub fn takes_certificates(self) -> bool {
        self != ClusterAuthMode::KeyFile
    }

    pub fn shows_certificate(self) -> bool {
        self >= ClusterAuthMode::SendX509
    }
}
