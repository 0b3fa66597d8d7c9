//! Where the connections of a server are served, and what they share there.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::busy_poll::Requesters;
use crate::in_flight::InFlight;

/// Where a connection is served.
#[derive(Clone)]
pub(crate) struct Place {
    pub runtime: Handle,
    /// What all connections that are served alike may keep of messages.
    pub in_flight: InFlight,
    /// Who of these has sent requests of late.
    pub requesters: Arc<Requesters>,
}

/// Where the connections of a server are served.
#[derive(Clone)]
pub(crate) struct Places {
    /// Where they begin.
    pub logins: Place,
    /// Without, they stay there.
    pub others: Option<Others>,
}

#[derive(Clone)]
pub(crate) struct Others {
    /// Shares its memory with the logins: what has come with a connection stays counted.
    pub vital: Place,
    pub ordinary: Place,
}
