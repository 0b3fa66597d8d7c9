//! The flags for encrypted connections, and what they make of the driver's options.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use mongodb::options::{ClientOptions, Tls, TlsOptions};

/// They hold for every connection of the shell, and win over what an address says.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Encryption {
    /// Encrypts connections
    #[arg(long, alias = "ssl")]
    tls: bool,
    /// PEM file with the authorities that are trusted
    #[arg(long = "tlsCAFile", alias = "sslCAFile", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// PEM file with a certificate and its key, shown to servers
    #[arg(
        long = "tlsCertificateKeyFile",
        alias = "sslPEMKeyFile",
        value_name = "FILE"
    )]
    certificate_key_file: Option<PathBuf>,
    /// Takes any certificate of a server; for tests
    #[arg(
        long = "tlsAllowInvalidCertificates",
        alias = "sslAllowInvalidCertificates"
    )]
    allow_invalid_certificates: bool,
    /// Not supported: says what to do instead
    #[arg(long = "tlsAllowInvalidHostnames", alias = "sslAllowInvalidHostnames")]
    allow_invalid_hostnames: bool,
}

impl Encryption {
    pub fn apply(&self, options: &mut ClientOptions) -> Result<()> {
        if *self == Encryption::default() {
            return Ok(());
        }
        if self.allow_invalid_hostnames {
            bail!(
                "--tlsAllowInvalidHostnames is not supported: use the host's name as the \
                 certificate has it, or, where nobody listens, --tlsAllowInvalidCertificates"
            );
        }
        let mut tls = match options.tls.take() {
            Some(Tls::Enabled(given)) => given,
            _ if self.tls => TlsOptions::default(),
            _ => bail!(
                "--tlsCAFile, --tlsCertificateKeyFile and --tlsAllowInvalidCertificates need --tls, \
                 or tls=true in the address"
            ),
        };
        if let Some(file) = &self.ca_file {
            tls.ca_file_path = Some(file.clone());
        }
        if let Some(file) = &self.certificate_key_file {
            tls.cert_key_file_path = Some(file.clone());
        }
        if self.allow_invalid_certificates {
            tls.allow_invalid_certificates = Some(true);
        }
        options.tls = Some(Tls::Enabled(tls));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        encryption: Encryption,
    }

    fn applied(words: &str, address: &str) -> Result<Option<Tls>> {
        let words = std::iter::once("mongo").chain(words.split_whitespace());
        let encryption = Words::try_parse_from(words)?.encryption;
        let runtime = tokio::runtime::Runtime::new()?;
        let mut options = runtime.block_on(async { ClientOptions::parse(address).await })?;
        encryption.apply(&mut options)?;
        Ok(options.tls)
    }

    #[test]
    fn flags_win_over_the_address() {
        let plain = "mongodb://a/";
        assert_eq!(applied("", plain).unwrap(), None);
        let expected = TlsOptions::builder()
            .ca_file_path(PathBuf::from("ca"))
            .cert_key_file_path(PathBuf::from("key"))
            .allow_invalid_certificates(true)
            .build();
        let words =
            "--tls --tlsCAFile ca --tlsCertificateKeyFile key --tlsAllowInvalidCertificates";
        let all = applied(words, plain).unwrap();
        assert_eq!(all, Some(Tls::Enabled(expected.clone())));
        let address = "mongodb://a/?tls=true&tlsCAFile=other&tlsCertificateKeyFile=key";
        let words = "--sslCAFile ca --sslAllowInvalidCertificates";
        assert_eq!(applied(words, address).unwrap(), all);
        let address = "mongodb://a/?tls=false";
        assert!(matches!(
            applied("--tls --tlsCAFile ca", address).unwrap(),
            Some(Tls::Enabled(_))
        ));
        let kept = applied("", "mongodb://a/?ssl=true&tlsCAFile=ca").unwrap();
        let only = TlsOptions::builder()
            .ca_file_path(PathBuf::from("ca"))
            .build();
        assert_eq!(kept, Some(Tls::Enabled(only)));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        assert!(applied("--tlsCAFile ca", "mongodb://a/").is_err());
        let said = applied("--tls --tlsAllowInvalidHostnames", "mongodb://a/").unwrap_err();
        assert!(said.to_string().contains("not supported"));
    }
}
