//! Ending on the server what the shell no longer waits for.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::{SelectionCriteria, ServerAddress};

/// Between two looks for what still runs: the command may only just be on its way.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A server that does not end it in this time is left alone.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Which operations are meant, in terms of `currentOp`.
pub enum Whose {
    Session(Bson),
    /// The server's number of it.
    Connection(i64),
}

impl Whose {
    fn filter(&self) -> Document {
        match self {
            // Some servers show the session in the command alone.
            Whose::Session(id) => {
                doc! { "$or": [{ "lsid.id": id.clone() }, { "command.lsid.id": id.clone() }] }
            }
            Whose::Connection(id) => doc! { "connectionId": *id },
        }
    }
}

/// Kills the operations until `command` has been answered.
pub async fn end<T>(
    mut command: impl Future<Output = T> + Unpin,
    client: &Client,
    server: ServerAddress,
    whose: Whose,
) {
    let ended = async {
        loop {
            // Who cannot be asked now may be asked the next time.
            let _ = kill(client, &server, &whose).await;
            if tokio::time::timeout(LOOK_EVERY, &mut command).await.is_ok() {
                return;
            }
        }
    };
    // What goes on all the same loses its client now.
    let _ = tokio::time::timeout(TIMEOUT, ended).await;
}

async fn kill(
    client: &Client,
    server: &ServerAddress,
    whose: &Whose,
) -> mongodb::error::Result<()> {
    let admin = client.database("admin");
    let there = || {
        let server = server.clone();
        let is_it = move |info: &mongodb::ServerInfo| *info.address() == server;
        SelectionCriteria::Predicate(Arc::new(is_it))
    };
    let mut current = doc! { "currentOp": 1 };
    current.extend(whose.filter());
    let reply = admin
        .run_command(current)
        .selection_criteria(there())
        .await?;
    let listed = reply.get_array("inprog").into_iter().flatten();
    for operation in listed.filter_map(Bson::as_document) {
        if let Some(id) = operation.get("opid") {
            let kill = doc! { "killOp": 1, "op": id.clone() };
            admin.run_command(kill).selection_criteria(there()).await?;
        }
    }
    Ok(())
}
