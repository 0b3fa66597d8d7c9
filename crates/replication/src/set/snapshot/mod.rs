//! A member that is too far behind for the log fetches the whole state from the primary.
//!
//! The primary keeps a storage snapshot open under a token ([`offers`]), and the log from there on,
//! and answers `_fetchSnapshot`. The taker ([`fetch`]) empties its own store, cuts the parts into
//! slices and fetches several at once, each in chunks with a checksum; at the end it holds what it
//! counted against the catalog. Until then it holds nothing that anybody may read.
//!
//! What is kept when it's interrupted:
//!
//! - a lost connection: everything; the chunk is asked for again;
//! - a primary that steps down: everything; it goes on giving what it has offered;
//! - the taker's own crash or restart: every slice that had ended, if the giver still has the
//!   snapshot (it keeps it for [`offers::TIMEOUT`] after the last request);
//! - a giver that ends or is away for longer: nothing. Another member's snapshot is another state,
//!   and the fetching starts anew.
//!
//! [`progress`] is what `rs.status()` shows of it.

pub mod fetch;
pub mod offers;
pub mod progress;

pub use fetch::Fetcher;
pub use offers::Offers;
pub use progress::InitialSync;
