//! Banyan beside the reference: the same operations go to both, and the replies are compared.
//!
//! - `notation`: documents as text, every type told apart;
//! - `random`, `generate`: cases out of a seed;
//! - `case`, `story`, `servers`, `peer`, `side`: a case, and a server that is asked;
//! - `shape`, `order`, `compare`: what counts in a reply, and how two differ;
//! - `shrink`: a failing case made small;
//! - `proof`: whether a case has two faults of which each server names another one;
//! - `known`: the differences that are known, in `known.txt`;
//! - `hunt`: generated cases, by the thousand;
//! - `record`: golden files in `cases/`, which need no reference.

pub mod case;
pub mod compare;
pub mod generate;
pub mod hunt;
pub mod known;
pub mod notation;
pub mod order;
pub mod peer;
pub mod proof;
pub mod random;
pub mod record;
pub mod servers;
pub mod shape;
pub mod shrink;
pub mod side;
pub mod story;
