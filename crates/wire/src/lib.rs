//! MongoDB's wire protocol: messages, listeners and clients.
//!
//! A request travels: [`frame`] cuts the byte stream into messages, never trusting a length;
//! [`message`] decompresses, validates and makes a [`Request`] that shares the message's bytes
//! ([`legacy`] does the same for the opcodes of old drivers); [`server`] accepts, `serving` calls
//! the [`Service`] and writes the [`Reply`] in the form that the request came in, and `presence`
//! notices a client that leaves meanwhile. `stream` carries the bytes, encrypted if [`tls`] says so. In the other
//! direction [`client`] keeps bounded pools of connections to one address, and [`replica_set`] finds, and watches, the
//! members that answer: which of them suit a read preference ([`read_preference`]) is a pure function
//! ([`selection`]).
//!
//! Nothing here knows what a command means, except for what belongs to the connection itself:
//! compression and client metadata in `hello`, replies that follow one another ([`exhaust`]), and
//! `getLastError`. Tests have commands fail by their names ([`fail_points`]).

pub mod behalf;
mod busy_poll;
mod client;
mod codes;
mod compression;
mod connection;
mod decoding;
mod error;
mod exhaust;
pub mod fail_points;
mod frame;
mod hello;
mod in_flight;
mod last_error;
mod legacy;
pub mod login;
pub mod message;
mod one_way;
mod opened;
mod outgoing;
pub mod params;
mod places;
pub mod pool_commands;
mod presence;
mod read_preference;
mod replica_set;
mod request;
mod runtimes;
mod selection;
pub mod server;
mod service;
mod serving;
pub mod session_id;
mod socket;
mod stream;
pub mod tls;
pub mod version;

pub use client::{ClientError, Pool, PoolOptions, PoolUsage};
pub use codes::ErrorCode;
pub use compression::Compressor;
pub use connection::{Connection, LastError, LastWrite, OWN_CONNECTION_ID};
pub use error::CommandError;
pub use frame::{FrameError, FrameReader, HEADER_BYTES, MESSAGE_BYTES_MAX};
pub use one_way::Overflow;
pub use outgoing::Outgoing;
pub use presence::Presence;
pub use read_preference::{ReadMode, ReadPreference, TagSet};
pub use replica_set::{ReplicaSet, ReplicaSetError, RequestOptions};
pub use request::{Doc, Origin, Request, Sequence};
pub use runtimes::{Apart, Runtimes};
pub use server::{Options, Server};
pub use service::{Counters, Reply, Service, StrangerLimits};
pub use session_id::SessionId;
