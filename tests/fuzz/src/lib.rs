//! Hostile bytes for real processes: messages, documents, commands, what members tell each other,
//! what a script host reads, and damaged data directories, all out of a seed.
//!
//! - `places`, `mutate`: where a document can be damaged, as bytes and as a tree;
//! - `message`, `templates`, `members`, `forge`: messages of every opcode, and what they say;
//! - `connection`: sends one and waits for what comes;
//! - `server`: what runs, and what has to hold of it after every batch;
//! - `batch`, `found`: sending many, and finding the one that did it;
//! - `host`, `directory`: script hosts and data directories.

pub mod batch;
pub mod connection;
pub mod directory;
pub mod forge;
pub mod found;
pub mod host;
pub mod members;
pub mod message;
pub mod mutate;
pub mod places;
pub mod server;
pub mod templates;

/// What is attacked, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Messages of every opcode whose frames are damaged
    Wire,
    /// Documents whose bytes are damaged
    Bson,
    /// Commands whose fields and values are changed
    Commands,
    /// What members of a set, shards and config servers tell each other
    Members,
    /// Frames for a script host
    Frames,
    /// Files of a data directory
    Files,
}

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Wire,
        Kind::Bson,
        Kind::Commands,
        Kind::Members,
        Kind::Frames,
        Kind::Files,
    ];

    /// Whether it is sent to a server, as opposed to what is given to a process as it starts.
    pub fn is_sent(self) -> bool {
        !matches!(self, Kind::Frames | Kind::Files)
    }
}
