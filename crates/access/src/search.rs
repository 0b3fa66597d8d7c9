//! What is answered where a request needs a search service, which no server here has.

use banyan_wire::{CommandError, ErrorCode};

pub fn not_enabled() -> CommandError {
    CommandError::new(
        ErrorCode::SearchNotEnabled,
        "search indexes need a search service, as Atlas has one, and this server is not connected to any",
    )
}
