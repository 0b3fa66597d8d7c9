//! How the servers are started that are compared.

use std::path::PathBuf;

use banyan_tests::Launch;

/// When a document expires no seed says.
const NO_EXPIRY: [&str; 2] = ["--setParameter", "ttlMonitorEnabled=false"];

pub fn banyan() -> Launch {
    Launch::mongod().with(NO_EXPIRY)
}

pub fn reference(program: PathBuf) -> Launch {
    // Its other engine has error codes that no other release has, and aborts on rare types.
    let classic = ["--setParameter", "internalQueryForceClassicEngine=true"];
    Launch::other(program).with(classic).with(NO_EXPIRY)
}
