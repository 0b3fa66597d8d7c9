//! The flags of encrypted connections, by MongoDB's names of today and of old (`--ssl…`).

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Which connections are encrypted: those that come in, and those to other members and shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum TlsMode {
    /// None.
    #[default]
    #[value(name = "disabled")]
    Disabled,
    /// Those that come in may be; those to others are not.
    #[value(name = "allowTLS", alias = "allowSSL")]
    Allow,
    /// Those that come in may be; those to others are.
    #[value(name = "preferTLS", alias = "preferSSL")]
    Prefer,
    /// All.
    #[value(name = "requireTLS", alias = "requireSSL")]
    Require,
}

impl TlsMode {
    pub const ALL: [TlsMode; 4] = [
        TlsMode::Disabled,
        TlsMode::Allow,
        TlsMode::Prefer,
        TlsMode::Require,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            TlsMode::Disabled => "disabled",
            TlsMode::Allow => "allowTLS",
            TlsMode::Prefer => "preferTLS",
            TlsMode::Require => "requireTLS",
        }
    }

    /// The name that the parameter `sslMode` has for it.
    pub const fn old_name(self) -> &'static str {
        match self {
            TlsMode::Disabled => "disabled",
            TlsMode::Allow => "allowSSL",
            TlsMode::Prefer => "preferSSL",
            TlsMode::Require => "requireSSL",
        }
    }
}

/// A password of the command line. It is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<password>")
    }
}

/// A version of the protocol that `--tlsDisabledProtocols` may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsProtocol {
    /// 1.0 and 1.1, which are never spoken.
    Old,
    V1_2,
    V1_3,
}

#[derive(Args, Clone, Debug, Default)]
pub struct TlsFlags {
    /// Which connections are encrypted
    #[arg(id = "tlsMode", long = "tlsMode", alias = "sslMode", value_enum)]
    pub mode: Option<TlsMode>,
    /// The old way to say --tlsMode requireTLS
    #[arg(
        id = "tlsOnNormalPorts",
        long = "tlsOnNormalPorts",
        alias = "sslOnNormalPorts",
        conflicts_with = "tlsMode",
        hide_short_help = true
    )]
    pub on_normal_ports: bool,
    /// PEM file with this server's certificate, those between it and the authority, and its key
    #[arg(
        id = "tlsCertificateKeyFile",
        long = "tlsCertificateKeyFile",
        alias = "sslPEMKeyFile",
        value_name = "FILE"
    )]
    pub certificate_key_file: Option<PathBuf>,
    /// Password of the key in --tlsCertificateKeyFile
    #[arg(
        id = "tlsCertificateKeyFilePassword",
        long = "tlsCertificateKeyFilePassword",
        alias = "sslPEMKeyPassword",
        value_name = "PASSWORD"
    )]
    pub certificate_key_file_password: Option<Secret>,
    /// PEM file like --tlsCertificateKeyFile, shown to other members instead of it
    #[arg(
        id = "tlsClusterFile",
        long = "tlsClusterFile",
        alias = "sslClusterFile",
        value_name = "FILE"
    )]
    pub cluster_file: Option<PathBuf>,
    /// Password of the key in --tlsClusterFile
    #[arg(
        id = "tlsClusterPassword",
        long = "tlsClusterPassword",
        alias = "sslClusterPassword",
        value_name = "PASSWORD"
    )]
    pub cluster_password: Option<Secret>,
    /// PEM file with the authorities that are trusted
    #[arg(
        id = "tlsCAFile",
        long = "tlsCAFile",
        alias = "sslCAFile",
        value_name = "FILE"
    )]
    pub ca_file: Option<PathBuf>,
    /// PEM file with the authorities that are trusted for connections that come in, instead of those
    /// in --tlsCAFile
    #[arg(
        id = "tlsClusterCAFile",
        long = "tlsClusterCAFile",
        alias = "sslClusterCAFile",
        value_name = "FILE"
    )]
    pub cluster_ca_file: Option<PathBuf>,
    /// PEM file with lists of revoked certificates
    #[arg(
        id = "tlsCRLFile",
        long = "tlsCRLFile",
        alias = "sslCRLFile",
        value_name = "FILE"
    )]
    pub crl_file: Option<PathBuf>,
    /// Versions that are not spoken: TLS1_2, TLS1_3 (TLS1_0 and TLS1_1 never are)
    #[arg(
        id = "tlsDisabledProtocols",
        long = "tlsDisabledProtocols",
        alias = "sslDisabledProtocols",
        value_name = "VERSIONS"
    )]
    pub disabled_protocols: Option<String>,
    /// Take clients that show no certificate
    #[arg(
        id = "tlsAllowConnectionsWithoutCertificates",
        long = "tlsAllowConnectionsWithoutCertificates",
        aliases = ["sslAllowConnectionsWithoutCertificates", "sslWeakCertificateValidation"]
    )]
    pub allow_connections_without_certificates: bool,
    /// Take any certificate, of clients and of other members; for tests
    #[arg(
        id = "tlsAllowInvalidCertificates",
        long = "tlsAllowInvalidCertificates",
        alias = "sslAllowInvalidCertificates"
    )]
    pub allow_invalid_certificates: bool,
    /// Take certificates of other members that name other hosts
    #[arg(
        id = "tlsAllowInvalidHostnames",
        long = "tlsAllowInvalidHostnames",
        alias = "sslAllowInvalidHostnames"
    )]
    pub allow_invalid_hostnames: bool,
}

impl TlsFlags {
    pub fn mode(&self) -> TlsMode {
        match self.mode {
            Some(mode) => mode,
            None if self.on_normal_ports => TlsMode::Require,
            None => TlsMode::Disabled,
        }
    }

    /// What is wrong with flags that each are right by themselves.
    pub fn refusal(&self) -> Option<String> {
        if self.mode() == TlsMode::Disabled {
            let needless = "need to enable TLS via the sslMode/tlsMode flag when using TLS \
                            configuration parameters";
            return self.names_more_than_the_mode().then(|| needless.to_owned());
        }
        if self.certificate_key_file.is_none() {
            return Some("need tlsCertificateKeyFile when TLS is enabled".to_owned());
        }
        if self.ca_file.is_none() && self.crl_file.is_some() {
            return Some("need tlsCAFile with tlsCRLFile".to_owned());
        }
        match self.disabled_protocols() {
            Err(reason) => Some(reason),
            Ok(off) if off.contains(&TlsProtocol::V1_2) && off.contains(&TlsProtocol::V1_3) => {
                Some("tlsDisabledProtocols leaves no version to speak".to_owned())
            }
            Ok(_) => None,
        }
    }

    fn names_more_than_the_mode(&self) -> bool {
        let files = [
            &self.certificate_key_file,
            &self.cluster_file,
            &self.ca_file,
            &self.cluster_ca_file,
            &self.crl_file,
        ];
        files.iter().any(|file| file.is_some())
            || self.certificate_key_file_password.is_some()
            || self.cluster_password.is_some()
            || self.disabled_protocols.is_some()
            || self.allow_connections_without_certificates
            || self.allow_invalid_certificates
            || self.allow_invalid_hostnames
    }

    /// The versions in `--tlsDisabledProtocols`; an error names the one that is not known.
    pub fn disabled_protocols(&self) -> Result<Vec<TlsProtocol>, String> {
        let given = self.disabled_protocols.as_deref().unwrap_or_default();
        let names = given.split(',').map(str::trim);
        let versions = names.filter(|name| !name.is_empty() && *name != "none");
        let versions = versions.map(|name| match name.trim_start_matches("no") {
            "TLS1_0" | "TLS1_1" => Ok(TlsProtocol::Old),
            "TLS1_2" => Ok(TlsProtocol::V1_2),
            "TLS1_3" => Ok(TlsProtocol::V1_3),
            _ => Err(format!("Unrecognized disabledProtocols '{name}'")),
        });
        versions.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Program {
        #[command(flatten)]
        tls: TlsFlags,
    }

    fn flags(words: &str) -> TlsFlags {
        let words = std::iter::once("program").chain(words.split_whitespace());
        Program::try_parse_from(words).unwrap().tls
    }

    #[test]
    fn the_names_of_old_mean_the_same() {
        let new = flags(
            "--tlsMode preferTLS --tlsCertificateKeyFile a --tlsCertificateKeyFilePassword b \
             --tlsCAFile c --tlsAllowConnectionsWithoutCertificates",
        );
        let old = flags(
            "--sslMode preferSSL --sslPEMKeyFile a --sslPEMKeyPassword b --sslCAFile c \
             --sslWeakCertificateValidation",
        );
        assert_eq!(format!("{new:?}"), format!("{old:?}"));
        assert_eq!(new.mode(), TlsMode::Prefer);
        assert!(!format!("{new:?}").contains("\"b\""));
        assert_eq!(flags("--sslOnNormalPorts").mode(), TlsMode::Require);
        assert_eq!(flags("").mode(), TlsMode::Disabled);
        for mode in TlsMode::ALL {
            assert_eq!(flags(&format!("--tlsMode {}", mode.name())).mode(), mode);
            assert_eq!(
                flags(&format!("--sslMode {}", mode.old_name())).mode(),
                mode
            );
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let on = "--tlsMode requireTLS --tlsCertificateKeyFile a";
        for (words, said) in [
            ("--tlsCAFile a", Some("need to enable TLS")),
            (
                "--tlsMode disabled --tlsCertificateKeyFile a",
                Some("need to enable TLS"),
            ),
            ("--tlsMode allowTLS", Some("need tlsCertificateKeyFile")),
            ("--tlsCRLFile c", Some("need to enable TLS")),
            (
                &*format!("{on} --tlsCRLFile c"),
                Some("need tlsCAFile with tlsCRLFile"),
            ),
            (
                &*format!("{on} --tlsDisabledProtocols SSL9"),
                Some("Unrecognized disabledProtocols 'SSL9'"),
            ),
            (
                &*format!("{on} --tlsDisabledProtocols TLS1_2,TLS1_3"),
                Some("no version to speak"),
            ),
            (
                &*format!("{on} --tlsDisabledProtocols TLS1_0,TLS1_1,noTLS1_2"),
                None,
            ),
            (&*format!("{on} --tlsDisabledProtocols none"), None),
            (on, None),
            ("--tlsMode disabled", None),
            ("", None),
        ] {
            let refusal = flags(words).refusal();
            match said {
                Some(said) => assert!(refusal.unwrap().contains(said), "{words}"),
                None => assert_eq!(refusal, None, "{words}"),
            }
        }
    }
}
