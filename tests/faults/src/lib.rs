//! Faults on real processes: a replica set under a mixed load while its members are killed, stopped,
//! cut off from each other, given a full or slow disk or another time of day; and the question
//! whether what its clients saw could have happened on one machine that never fails.
//!
//! - [`set`] starts the members. Each is known to the others and to the clients by the address of a
//!   proxy ([`net`]), which finds out which process has connected and so can cut, hold or delay what
//!   one says to another, in one direction or both. A small preloaded library (`preload/`, steered by
//!   [`control`]) gives a member's clock and disk their faults, down to what a lost power
//!   takes with it ([`power`]). Nothing needs privileges, and the
//!   program under test is the one that ships.
//! - [`load`] has the clients; they write down what they asked, when, and what came back
//!   ([`history`]).
//! - [`nemesis`] does the harm, [`watch`] looks at who leads.
//! - [`check`] judges the histories: pure functions with their own tests.
//! - [`durability`] has rounds of its own, against single servers too: a process dies at a named place
//!   on its way to the disk, or at any moment, and what is found after the restart is compared with
//!   what was acknowledged.
//! - [`round`] puts one round together, [`report`] shows it and keeps what explains a failure.

pub mod check;
pub mod control;
pub mod durability;
pub mod history;
pub mod load;
pub mod nemesis;
pub mod net;
pub mod power;
pub mod report;
pub mod round;
pub mod set;
pub mod watch;
