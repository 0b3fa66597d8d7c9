//! How far the others have come, as far as it is known.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Default)]
pub struct Progress {
    pub followers: Mutex<Followers>,
    pub changed: watch::Sender<u64>,
    pub waiting: AtomicUsize,
}

#[derive(Default)]
pub struct Followers {
    /// What is known holds for this term: a member may have lost its state between two.
    pub term: u64,
    pub by_host: HashMap<String, Follower>,
}

#[derive(Default)]
pub struct Follower {
    pub applied_index: u64,
    /// A task asks it.
    pub followed: bool,
}
