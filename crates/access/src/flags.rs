//! What the flags of a program say about who may do what.

use std::sync::Arc;

use banyan_process::{ClusterAuthMode, CommonFlags};
use banyan_wire::login;

use crate::certificates::ClusterLogin;
use crate::control::AccessOptions;
use crate::members::{MemberKeys, MemberLogin};

/// Reads the key file and takes the mode of `--clusterAuthMode`. Where members prove who they are,
/// clients have to as well.
///
/// # Errors
/// That `--transitionToAuth` has nothing to lead to, or why the key file cannot be used.
pub fn read(common: &CommonFlags, transition: bool) -> Result<AccessOptions, String> {
    let mode = common.cluster_auth_mode;
    let by_certificates = mode.is_some_and(ClusterAuthMode::takes_certificates);
    if transition && common.key_file.is_none() && !by_certificates {
        return Err(
            "--transitionToAuth must be used with --keyFile or --clusterAuthMode x509".to_owned(),
        );
    }
    if let Some(mode) = mode {
        login::set_cluster_auth_mode(mode);
    }
    let keys = match &common.key_file {
        Some(path) => {
            let keys = MemberKeys::read(path, transition)
                .map_err(|error| format!("--keyFile (security.keyFile): {error}"))?;
            Some(Arc::new(keys))
        }
        None => None,
    };
    Ok(AccessOptions {
        authorization: keys.is_some() || by_certificates,
        transition,
        keys,
    })
}

/// From now on this process proves on every connection that it opens that it is of the cluster, if
/// it was given anything to do that with.
pub fn prove(access: &AccessOptions) {
    if access.keys.is_some() || login::cluster_auth_mode().shows_certificate() {
        let keys = access.keys.clone().map(MemberLogin::new);
        let optional = access.transition;
        login::prove_by(Arc::new(ClusterLogin { keys, optional }));
    }
}
