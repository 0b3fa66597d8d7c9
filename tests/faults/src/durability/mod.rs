//! Does what was acknowledged outlive the process, and is nothing else half there?
//!
//! - [`bed`]: a single server or a set, whose members can be killed and can lose what was not synced;
//! - [`load`]: writers that know for each of their documents what it may be;
//! - [`definitions`]: a writer that makes and drops collections and indexes;
//! - [`round`]: one crash, the restart, and the comparison.

pub mod bed;
pub mod definitions;
pub mod load;
pub mod round;
