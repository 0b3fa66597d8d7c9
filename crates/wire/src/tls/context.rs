//! What a process has of encrypted connections: certificates, authorities, the mode.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use banyan_process::tls::{Secret, TlsProtocol};
use banyan_process::{TlsFlags, TlsMode};
use parking_lot::RwLock;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use rustls::{
    ClientConfig, InconsistentKeys, ProtocolVersion, RootCertStore, ServerConfig,
    SupportedProtocolVersion,
};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::certificate::CertificateDetails;
use super::files::{self, Identity, TlsError, rfc3339};
use super::verifier::{self, AnyClient, Servers};

/// A certificate that ends sooner than this is spoken of in the log.
const ENDS_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// How many clients can come back without the whole handshake.
const SESSIONS_KEPT: usize = 1024;

pub struct Tls {
    flags: TlsFlags,
    /// A [`TlsMode`] by its place among all of them.
    mode: AtomicU8,
    material: RwLock<Arc<Material>>,
    /// One for each core: so many handshakes compute at once.
    pub(crate) computing: Semaphore,
    versions: [AtomicU64; 2],
}

/// How many connections have come in encrypted, by version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsVersions {
    pub v1_2: u64,
    pub v1_3: u64,
}

/// All that comes out of the files. A connection keeps what it began with.
pub(crate) struct Material {
    pub inbound: Arc<ServerConfig>,
    pub client_names: ClientNames,
    pub outbound: Arc<ClientConfig>,
    server: CertificateDetails,
}

/// Whether the name in a client's certificate is its own.
pub(crate) enum ClientNames {
    /// No certificates are asked for.
    NotAsked,
    /// The handshake sees to it.
    Proved,
    /// The handshake lets any certificate pass; this one does not.
    ToCheck(Arc<dyn ClientCertVerifier>),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("flags", &self.flags)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

static PROCESS: OnceLock<Arc<Tls>> = OnceLock::new();

/// From now on this is what the listeners and pools of this process use, unless their options
/// say otherwise. The first one counts.
pub fn install(tls: Arc<Tls>) {
    let _ = PROCESS.set(tls);
}

/// What was installed.
pub fn process() -> Option<Arc<Tls>> {
    PROCESS.get().cloned()
}

impl Tls {
    /// Reads the files that the flags name; `None` if they say that nothing is encrypted.
    pub fn open(flags: &TlsFlags) -> Result<Option<Arc<Tls>>, TlsError> {
        let mode = flags.mode();
        if mode == TlsMode::Disabled {
            return Ok(None);
        }
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let tls = Tls {
            material: RwLock::new(Arc::new(Material::read(flags)?)),
            flags: flags.clone(),
            mode: AtomicU8::new(mode as u8),
            computing: Semaphore::new(cores),
            versions: Default::default(),
        };
        if flags.ca_file.is_none() && flags.cluster_ca_file.is_none() {
            warn!("clients need no certificates, since no tlsCAFile says whom to believe");
        }
        Ok(Some(Arc::new(tls)))
    }

    pub fn mode(&self) -> TlsMode {
        let at = usize::from(self.mode.load(Ordering::Relaxed));
        TlsMode::ALL.get(at).copied().unwrap_or(TlsMode::Require)
    }

    /// Goes one step on the way from `allowTLS` to `requireTLS`, as a cluster does member by
    /// member; `false`: that is not such a step.
    pub fn advance(&self, to: TlsMode) -> bool {
        let from = match to {
            TlsMode::Prefer => TlsMode::Allow,
            TlsMode::Require => TlsMode::Prefer,
            TlsMode::Disabled | TlsMode::Allow => return false,
        };
        let (from, to) = (from as u8, to as u8);
        self.mode
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Reads the files again. If that fails all stays as it is; connections that are open keep
    /// what they have.
    pub fn rotate(&self) -> Result<(), TlsError> {
        let fresh = Material::read(&self.flags)?;
        *self.material.write() = Arc::new(fresh);
        info!("the certificates were read again");
        Ok(())
    }

    /// This process's certificate.
    pub fn certificate(&self) -> CertificateDetails {
        self.material.read().server.clone()
    }

    pub fn has_authority(&self) -> bool {
        self.flags.ca_file.is_some()
    }

    pub fn versions(&self) -> TlsVersions {
        let [v1_2, v1_3] = &self.versions;
        TlsVersions {
            v1_2: v1_2.load(Ordering::Relaxed),
            v1_3: v1_3.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, version: Option<ProtocolVersion>) {
        let [v1_2, v1_3] = &self.versions;
        let counter = match version {
            Some(ProtocolVersion::TLSv1_3) => v1_3,
            _ => v1_2,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn material(&self) -> Arc<Material> {
        self.material.read().clone()
    }

    /// Whether connections to others are encrypted.
    pub(crate) fn connects(&self) -> bool {
        self.mode() >= TlsMode::Prefer
    }
}

impl Material {
    fn read(flags: &TlsFlags) -> Result<Material, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = versions(flags)?;
        let read = |path: &Option<PathBuf>| -> Result<_, TlsError> {
            let store = path.as_deref().map(files::authorities).transpose()?;
            Ok(store.map(Arc::new))
        };
        let revoked = match &flags.crl_file {
            Some(path) => files::revocations(path)?,
            None => Vec::new(),
        };
        let key_file = flags.certificate_key_file.as_deref();
        let key_file = key_file.ok_or_else(|| other("there is no certificate key file"))?;
        let password =
            |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
        let server = identity(
            key_file,
            password(&flags.certificate_key_file_password).as_deref(),
            "server",
        )?;
        let member = match &flags.cluster_file {
            Some(path) => identity(
                path,
                password(&flags.cluster_password).as_deref(),
                "cluster",
            )?,
            None => Identity {
                chain: server.chain.clone(),
                key: server.key.clone_key(),
                details: server.details.clone(),
                path: server.path.clone(),
            },
        };
        let authorities = read(&flags.ca_file)?;
        let of_clients = match read(&flags.cluster_ca_file)? {
            Some(authorities) => Some(authorities),
            None => authorities.clone(),
        };
        let clients = clients(flags, &provider, of_clients, &revoked)?;
        let details = server.details.clone();
        let client_names = match &clients {
            None => ClientNames::NotAsked,
            Some(strict) if flags.allow_invalid_certificates => {
                ClientNames::ToCheck(strict.clone())
            }
            Some(_) => ClientNames::Proved,
        };
        Ok(Material {
            outbound: outbound(flags, &provider, &versions, authorities, &revoked, member)?,
            inbound: inbound(flags, &provider, &versions, clients, server)?,
            client_names,
            server: details,
        })
    }
}

fn other(reason: impl ToString) -> TlsError {
    TlsError::Other(reason.to_string())
}

fn identity(path: &Path, password: Option<&str>, kind: &str) -> Result<Identity, TlsError> {
    let identity = files::identity(path, password)?;
    let details = &identity.details;
    info!(
        file = %path.display(), kind,
        subject = details.subject, issuer = details.issuer,
        not_before = rfc3339(details.not_before), not_after = rfc3339(details.not_after),
        "certificate"
    );
    if details.not_after < SystemTime::now() + ENDS_SOON {
        warn!(
            file = %path.display(),
            not_after = rfc3339(details.not_after),
            "a certificate ends soon"
        );
    }
    Ok(identity)
}

fn versions(flags: &TlsFlags) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
    let off = flags.disabled_protocols().map_err(other)?;
    let all = [
        (TlsProtocol::V1_3, &rustls::version::TLS13),
        (TlsProtocol::V1_2, &rustls::version::TLS12),
    ];
    let left = all.into_iter().filter(|(name, _)| !off.contains(name));
    Ok(left.map(|(_, version)| version).collect())
}

fn clients(
    flags: &TlsFlags,
    provider: &Arc<CryptoProvider>,
    authorities: Option<Arc<RootCertStore>>,
    revoked: &[CertificateRevocationListDer<'static>],
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let may_have_none = flags.allow_connections_without_certificates;
    let verifier = authorities.map(|authorities| {
        verifier::clients(provider.clone(), authorities, revoked, may_have_none)
    });
    verifier.transpose().map_err(other)
}

fn inbound(
    flags: &TlsFlags,
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<Arc<dyn ClientCertVerifier>>,
    server: Identity,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(other)?;
    let asks = clients.is_some();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(strict) if flags.allow_invalid_certificates => {
            let provider = provider.clone();
            builder.with_client_cert_verifier(Arc::new(AnyClient { strict, provider }))
        }
        Some(strict) => builder.with_client_cert_verifier(strict),
    };
    let mut config = builder
        .with_single_cert(server.chain, server.key)
        .map_err(|error| unusable(error, &server.path))?;
    // Who comes back is not looked at again: with lists of revoked certificates everybody is.
    config.session_storage = match asks && flags.crl_file.is_some() {
        true => Arc::new(NoServerSessionStorage {}),
        false => ServerSessionMemoryCache::new(SESSIONS_KEPT),
    };
    Ok(Arc::new(config))
}

fn outbound(
    flags: &TlsFlags,
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    authorities: Option<Arc<RootCertStore>>,
    revoked: &[CertificateRevocationListDer<'static>],
    member: Identity,
) -> Result<Arc<ClientConfig>, TlsError> {
    let servers = Servers::new(
        provider.clone(),
        authorities,
        revoked,
        flags.allow_invalid_certificates,
        flags.allow_invalid_hostnames,
    )
    .map_err(other)?;
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(member.chain, member.key)
        .map_err(|error| unusable(error, &member.path))?;
    Ok(Arc::new(config))
}

fn unusable(error: rustls::Error, path: &Path) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::OtherKey(path.to_owned())
        }
        error => TlsError::Certificate {
            path: path.to_owned(),
            reason: error.to_string(),
        },
    }
}
