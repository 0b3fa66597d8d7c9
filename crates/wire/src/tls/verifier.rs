//! Whose certificates are believed: `rustls` decides, and what the flags let pass does.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use tracing::warn;

use super::certificate::is_named_by_common_name;

/// The methods that both sides' verifiers have in common: whoever a certificate is of, the provider
/// checks what was signed with it.
macro_rules! checks_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, cert, dss, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, cert, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider
                .signature_verification_algorithms
                .supported_schemes()
        }
    };
}

/// Certificates of the servers that this process connects to.
#[derive(Debug)]
pub(crate) struct Servers {
    /// Without authorities nobody is believed.
    strict: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    allow_invalid_certificates: bool,
    allow_invalid_hostnames: bool,
}

impl Servers {
    pub fn new(
        provider: Arc<CryptoProvider>,
        authorities: Option<Arc<RootCertStore>>,
        revoked: &[CertificateRevocationListDer<'static>],
        allow_invalid_certificates: bool,
        allow_invalid_hostnames: bool,
    ) -> Result<Servers, String> {
        let strict = authorities.map(|authorities| {
            // As OpenSSL does for MongoDB: a list that is out of date vouches for nobody.
            WebPkiServerVerifier::builder_with_provider(authorities, provider.clone())
                .with_crls(revoked.iter().cloned())
                .only_check_end_entity_revocation()
                .enforce_revocation_expiration()
                .build()
        });
        Ok(Servers {
            strict: strict.transpose().map_err(|error| error.to_string())?,
            provider,
            allow_invalid_certificates,
            allow_invalid_hostnames,
        })
    }

    fn is_only_the_name(error: &Error) -> bool {
        matches!(
            error,
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
            )
        )
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = match &self.strict {
            Some(strict) => strict.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            None => Err(CertificateError::UnknownIssuer.into()),
        };
        // The name is looked at last: everything else is in order.
        let only_the_name = matches!(&verified, Err(error) if Servers::is_only_the_name(error));
        let passes = only_the_name
            && (self.allow_invalid_hostnames
                || is_named_by_common_name(end_entity, &server_name.to_str()));
        match verified {
            Err(error) if self.allow_invalid_certificates && !passes => {
                warn!(server = %server_name.to_str(), "the certificate of a server is not valid: {error}");
                Ok(ServerCertVerified::assertion())
            }
            Err(_) if passes => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    checks_signatures!();
}

/// Certificates of clients, as they have to be for their names to count.
pub(crate) fn clients(
    provider: Arc<CryptoProvider>,
    authorities: Arc<RootCertStore>,
    revoked: &[CertificateRevocationListDer<'static>],
    may_have_none: bool,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut builder = WebPkiClientVerifier::builder_with_provider(authorities, provider)
        .with_crls(revoked.iter().cloned())
        .only_check_end_entity_revocation()
        .enforce_revocation_expiration();
    if may_have_none {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| error.to_string())
}

/// Lets every certificate pass. The name in one that `strict` refuses is not believed.
#[derive(Debug)]
pub(crate) struct AnyClient {
    pub strict: Arc<dyn ClientCertVerifier>,
    pub provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        self.strict.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Clients look among their certificates for one of these authorities.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Err(error) = self
            .strict
            .verify_client_cert(end_entity, intermediates, now)
        {
            warn!("the certificate of a client is not valid: {error}");
        }
        Ok(ClientCertVerified::assertion())
    }

    checks_signatures!();
}
