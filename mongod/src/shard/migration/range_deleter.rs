//! The range deleter: begins what is due of [`super::orphans`], each task by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_wire::{CommandError, RequestOptions};
use bson::oid::ObjectId;
use bson::rawdoc;

use super::orphans::{Task, progress_of};
use super::removal::remove_task;
use crate::shard::state::ShardRole;

/// Between two looks at what is to be removed, if nobody gives a hint.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two questions to a donor whether its migration is over.
const ASK_PAUSE: Duration = Duration::from_millis(500);

/// A task that failed rests for this long, and twice as long each time that it fails again.
const BACKOFF: Duration = Duration::from_secs(1);

const BACKOFF_MAX: Duration = Duration::from_secs(60);

pub async fn run(role: Arc<ShardRole>) {
    let stop = role.node().info.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = role.orphans.wake.notified() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        if role.identity().is_none() {
            continue;
        }
        if role.term() == 0 {
            role.orphans.known.lock().retain(|_, known| known.running);
            continue;
        }
        if let Err(error) = round(&role).await {
            tracing::warn!(%error, "cannot look for orphaned documents");
        }
    }
}

/// Starts what is due.
async fn round(role: &Arc<ShardRole>) -> Result<(), CommandError> {
    let tasks = role.orphans.tasks(&role.local).await?;
    {
        let mut known = role.orphans.known.lock();
        known.retain(|id, progress| progress.running || tasks.iter().any(|task| task.id == *id));
        for task in &tasks {
            known.entry(task.id).or_insert_with(|| progress_of(task));
        }
    }
    for task in tasks {
        let role = role.clone();
        if task.pending {
            // Asking may take a while, and others need not wait for it.
            if claim(&role, &task) {
                tokio::spawn(async move { settle(&role, &task).await });
            }
        } else if is_due(&role, &task) && begin(&role, &task).await? {
            tokio::spawn(async move { work(&role, &task).await });
        }
    }
    Ok(())
}

/// Marks a pending task as being asked about.
fn claim(role: &ShardRole, task: &Task) -> bool {
    let mut known = role.orphans.known.lock();
    let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
    let rests = progress
        .rests_until
        .is_some_and(|until| until > Instant::now());
    !rests && !std::mem::replace(&mut progress.running, true)
}

fn is_due(role: &ShardRole, task: &Task) -> bool {
    let delay = role.node().parameters.value("orphanCleanupDelaySecs");
    let delay = Duration::from_secs(delay.max(0).unsigned_abs());
    let known = role.orphans.known.lock();
    let progress = known.get(&task.id);
    let rests = progress.and_then(|progress| progress.rests_until);
    !progress.is_some_and(|progress| progress.running)
        && rests.is_none_or(|until| until <= Instant::now())
        && (task.is_ripe(delay) || progress.is_some_and(|progress| progress.urgent))
}

/// Marks the task as running, unless what is on its way in might be taken for what was on its way
/// out, or it is done by now.
async fn begin(role: &ShardRole, task: &Task) -> Result<bool, CommandError> {
    let _gate = role.orphans.gate.lock().await;
    let present = role.orphans.tasks(&role.local).await?;
    let disturbed = present
        .iter()
        .any(|other| other.pending && other.ns == task.ns && other.range.overlaps(&task.range));
    if disturbed || !present.iter().any(|other| other.id == task.id) {
        return Ok(false);
    }
    let mut known = role.orphans.known.lock();
    let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
    Ok(!std::mem::replace(&mut progress.running, true))
}

async fn work(role: &Arc<ShardRole>, task: &Task) {
    let started = Instant::now();
    let outcome = remove_task(role, task).await;
    let mut known = role.orphans.known.lock();
    if let Err(error) = &outcome {
        let progress = known.entry(task.id).or_insert_with(|| progress_of(task));
        progress.running = false;
        progress.failures += 1;
        let pause = BACKOFF * (1 << (progress.failures - 1).min(6));
        progress.rests_until = Some(Instant::now() + pause.min(BACKOFF_MAX));
        progress.error = Some(error.clone());
        tracing::warn!(
            ns = task.ns, range = %task.range, failures = progress.failures, %error,
            "orphaned documents stay for now"
        );
    } else {
        known.remove(&task.id);
        let milliseconds = started.elapsed().as_millis() as u64;
        tracing::info!(ns = task.ns, range = %task.range, milliseconds, "removed orphans");
    }
}

/// Makes a task due if its migration has come to an end that nobody told.
async fn settle(role: &Arc<ShardRole>, task: &Task) {
    let is_over = !is_receiving(role, task.id) && came_to_an_end(role, task).await;
    if let Some(progress) = role.orphans.known.lock().get_mut(&task.id) {
        progress.running = false;
        progress.rests_until = (!is_over).then(|| Instant::now() + ASK_PAUSE);
    }
    if is_over && let Err(error) = role.orphans.make_due(&role.local, task.id).await {
        tracing::warn!(ns = task.ns, range = %task.range, %error, "a migration is not settled");
    }
}

fn is_receiving(role: &ShardRole, id: ObjectId) -> bool {
    let recipient = role.recipient.lock();
    recipient
        .as_ref()
        .is_some_and(|recipient| recipient.id == id && recipient.is_active())
}

/// Asks the donor whether it still may commit. Only then does the routing table tell the truth.
async fn came_to_an_end(role: &ShardRole, task: &Task) -> bool {
    let Some(host) = &task.from_host else {
        return true;
    };
    let body = rawdoc! { "_shardsvrMigrationIsOpen": task.ns.as_str(), "migrationId": task.id };
    let request_options = RequestOptions::write()
        .idempotent()
        .timeout(Some(ASK_TIMEOUT))
        .server_selection_timeout(ASK_TIMEOUT);
    let asked = async {
        let peer = role.peer(host)?;
        peer.command(request_options, "admin", &body)
            .await
            .map_err(CommandError::from)
    };
    match asked.await {
        Ok(reply) => !reply.get_bool("open").unwrap_or(true),
        // Later, then.
        Err(_) => false,
    }
}
