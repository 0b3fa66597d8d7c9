//! Moving a range of a collection to another shard.
//!
//! The donor drives ([`donor`]); the recipient works ([`recipient`]).
//!
//! 1. The donor starts to listen to writes in the range ([`capture`]) and asks the recipient to
//!    begin. The recipient writes down that it is about to receive the range (so that whatever it
//!    holds of it can be removed if this comes to nothing), removes what it may still hold of it,
//!    and makes sure of the collection and its indexes.
//! 2. The recipient clones the range over several streams, then fetches the documents that have
//!    changed meanwhile, again and again, until there are none. What the donor's sessions have done
//!    under their numbers comes along, so that a retry finds it here.
//! 3. The donor writes down that it is about to hand the range over, makes writes of the
//!    collection wait (the critical section), lets the recipient fetch the last changes
//!    (and the last of what sessions did), makes
//!    reads wait too, and commits on the config servers.
//! 4. The donor reads the routing table. Whoever it names owns the range: nobody's memory of the
//!    commit's outcome counts. A donor that cannot tell whether its commit is still under way
//!    first raises the chunk's version on the config servers, so that a late one is refused.
//! 5. The loser's documents are removed in the background ([`orphans`], [`range_deleter`], [`removal`]).
//!
//! A donor that crashes between 3 and 5 leaves its coordinator document behind, and the next primary
//! settles it before it takes any request for a sharded collection ([`recovery`]).

pub mod capture;
mod coordinator;
pub mod donor;
pub mod donor_state;
pub mod orphans;
pub mod range_deleter;
pub mod recipient;
pub mod recipient_state;
pub mod recovery;
mod removal;
