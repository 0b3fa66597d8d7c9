//! Names of collections that are views of something else: the log, the set's configuration, what
//! sessions have written, the sessions in use, and what the profiler has kept.

use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};

/// In the database `local`.
pub const OPLOG: &str = "oplog.rs";
pub const CONFIGURATION: &str = "system.replset";
/// In the database `config`.
pub const TRANSACTIONS: &str = "transactions";
pub const SESSIONS: &str = "system.sessions";

/// In every database.
pub const PROFILE: &str = "system.profile";

/// Nobody writes to such a collection, or makes one of its name.
pub fn refuse_write(namespace: &Namespace) -> Result<(), CommandError> {
    let is_virtual = match namespace.database() {
        "local" => matches!(namespace.collection(), OPLOG | CONFIGURATION),
        "config" => matches!(namespace.collection(), TRANSACTIONS | SESSIONS),
        _ => false,
    };
    if is_virtual || namespace.collection() == PROFILE {
        let why = format!("cannot write to {namespace}");
        return Err(CommandError::new(ErrorCode::InvalidNamespace, why));
    }
    Ok(())
}
