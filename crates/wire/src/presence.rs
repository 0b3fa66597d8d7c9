//! Noticing that a client has gone away while its command runs.
//!
//! A connection's task reads nothing while a command runs, and a command that computes keeps that
//! task from being polled at all. So one task looks after all connections: where the same command
//! still runs at the second look, the socket is asked whether its other end is closed. A command
//! that is over sooner pays for two stores.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::connection::Connection;
use crate::service::Service;
use crate::socket::Socket;

/// How often is looked: who leaves a command that has run for one of these is noticed within the
/// next.
const PERIOD: Duration = Duration::from_millis(25);

struct Client {
    connection: Weak<Connection>,
    socket: Weak<Socket>,
    /// The request that was running at the last look; 0: none was.
    seen: u64,
}

/// The clients that are connected.
#[derive(Default)]
pub struct Presence {
    clients: Mutex<HashMap<u64, Client>>,
}

impl Presence {
    /// The connections, in the order in which they were accepted.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        let clients = self.clients.lock();
        let connections = clients.values();
        let mut all: Vec<_> = connections
            .filter_map(|client| client.connection.upgrade())
            .collect();
        drop(clients);
        all.sort_by_key(|connection| connection.id);
        all
    }

    pub(crate) fn enter(&self, connection: &Arc<Connection>, socket: &Arc<Socket>) {
        connection.note_socket(socket);
        let client = Client {
            connection: Arc::downgrade(connection),
            socket: Arc::downgrade(socket),
            seen: 0,
        };
        self.clients.lock().insert(connection.id, client);
    }

    pub(crate) fn leave(&self, connection: u64) {
        self.clients.lock().remove(&connection);
    }

    /// Looks until `shutdown`, and tells the service of everybody who has left.
    pub(crate) async fn watch<S: Service>(
        self: Arc<Self>,
        service: Arc<S>,
        shutdown: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            for connection in self.left() {
                debug!(connection = connection.id, "the client left its command");
                connection.left().cancel();
                service.left(&connection);
            }
        }
    }

    /// Those whose command was running at the last look as well, and whose client is gone.
    fn left(&self) -> Vec<Arc<Connection>> {
        let mut clients = self.clients.lock();
        let left = clients.values_mut().filter_map(|client| {
            let connection = client.connection.upgrade()?;
            let running = connection.running();
            let again = running != 0 && std::mem::replace(&mut client.seen, running) == running;
            let suspect = again && !connection.left().is_cancelled();
            let ended = suspect && client.socket.upgrade().is_some_and(|s| s.has_ended());
            ended.then_some(connection)
        });
        left.collect()
    }
}
