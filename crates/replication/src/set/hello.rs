//! `hello`, `isMaster`: what drivers ask first and then again and again.

use std::time::Duration;

use banyan_consensus::Role;
use banyan_document::{MAX_DOCUMENT_BYTES, MAX_MESSAGE_BYTES};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{DateTime, RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::ReplicationCoordinator;
use super::config::{MemberConfig, SetConfig};
use super::state::MemberState;
use banyan_wire::version::{WIRE_VERSION_MAX, WIRE_VERSION_MIN};

const WRITE_BATCH_MAX: i32 = 100_000;

/// How the question was put.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// By `isMaster`: the answer says `ismaster` where `hello` says `isWritablePrimary`.
    pub old_name: bool,
    pub hello_ok: bool,
    pub connection: u64,
    /// How long a session lives that nobody names.
    pub session_minutes: i32,
}

impl ReplicationCoordinator {
    /// Which state of this member an answer is about: a driver passes over an error that is older
    /// than what it knows.
    pub fn topology_version(&self) -> RawDocumentBuf {
        // An error that says "not primary" must not look older than the change that it speaks of.
        if let Some(replica) = self.replica() {
            replica.group.settle();
        }
        rawdoc! { "processId": self.process, "counter": *self.topology.borrow() }
    }

    /// Something has changed that `hello` shows: whoever waits for that is answered. To be called
    /// after every change of the member's state, of the primary, or of the configuration.
    pub fn topology_changed(&self) {
        self.topology.send_modify(|counter| *counter += 1);
    }

    pub fn hello(&self, asked: Asked) -> Result<RawDocumentBuf, CommandError> {
        self.check_quiescing()?;
        let mut out = RawDocumentBuf::new();
        if asked.hello_ok {
            out.append(cstr!("helloOk"), true);
        }
        if self.is_replica_set() {
            // Taken before what it is the version of: a change in between is told once more.
            out.append(cstr!("topologyVersion"), self.topology_version());
            self.describe_set(asked, &mut out);
        } else {
            append_primary(&mut out, asked, true);
            out.append(cstr!("topologyVersion"), self.topology_version());
        }
        if self.config_server {
            out.append(cstr!("configsvr"), 2);
        }
        append_limits(&mut out, asked);
        out.append(cstr!("ok"), 1.0);
        Ok(out)
    }

    fn describe_set(&self, asked: Asked, out: &mut RawDocumentBuf) {
        let (status, config) = (self.status(), self.shown_config());
        let own = self.shown_host();
        let known = status.as_ref().zip(config.as_ref()).zip(own.as_ref());
        let placed = known.and_then(|((status, config), own)| {
            let (state, member) = (self.state_of(status), config.by_host(own)?);
            (state != MemberState::Removed).then_some((status, config, member, state))
        });
        let Some((status, config, member, state)) = placed else {
            // Before the set is initiated, and after the member was removed from it.
            append_primary(out, asked, false);
            out.append(cstr!("secondary"), false);
            out.append(cstr!("info"), "Does not have a valid replica set config");
            out.append(cstr!("isreplicaset"), true);
            return;
        };
        append_hosts(out, config);
        out.append(cstr!("setName"), config.name.as_str());
        out.append(
            cstr!("setVersion"),
            i32::try_from(config.version).unwrap_or(i32::MAX),
        );
        append_primary(out, asked, state == MemberState::Primary);
        out.append(cstr!("secondary"), state == MemberState::Secondary);
        if let Some(primary) = self.primary_host(status) {
            out.append(cstr!("primary"), primary);
        }
        append_member(out, member, asked);
        out.append(cstr!("me"), member.host.as_str());
        let election = *self.election.lock();
        if let (MemberState::Primary, Some(election)) = (state, election) {
            out.append(cstr!("electionId"), election.id);
        }
        let applied = self.applied(status);
        out.append(
            cstr!("lastWrite"),
            rawdoc! {
                "opTime": applied.to_document(),
                "lastWriteDate": applied.date(),
                "majorityOpTime": applied.to_document(),
                "majorityWriteDate": applied.date(),
            },
        );
    }

    /// The primary as this member sees it, once it may serve.
    pub(super) fn primary_host(&self, status: &banyan_consensus::Status) -> Option<String> {
        let leader = status.leader.and_then(|id| status.membership.get(id))?;
        let serves = status.role != Role::Leader || status.leader_ready;
        serves.then(|| leader.address.clone())
    }

    /// Waits until the answer differs from one with that version, or the time is over.
    pub async fn await_change(
        &self,
        process: ObjectId,
        counter: i64,
        max: Duration,
    ) -> Result<(), CommandError> {
        if process != self.process {
            return Ok(());
        }
        let mut topology = self.topology.subscribe();
        let now = *topology.borrow();
        if counter > now {
            return Err(CommandError::new(
                ErrorCode::Location(31382),
                format!(
                    "Received a topology version with counter: {counter} which is greater than \
                     the server topology version counter: {now}"
                ),
            ));
        }
        let newer = topology.wait_for(|now| *now != counter);
        // Both outcomes lead to an answer; only the time differs.
        let _ = tokio::time::timeout(max, newer).await;
        Ok(())
    }
}

fn append_limits(out: &mut RawDocumentBuf, asked: Asked) {
    out.append(cstr!("maxBsonObjectSize"), MAX_DOCUMENT_BYTES as i32);
    out.append(cstr!("maxMessageSizeBytes"), MAX_MESSAGE_BYTES as i32);
    out.append(cstr!("maxWriteBatchSize"), WRITE_BATCH_MAX);
    out.append(cstr!("localTime"), DateTime::now());
    out.append(cstr!("logicalSessionTimeoutMinutes"), asked.session_minutes);
    out.append(
        cstr!("connectionId"),
        i32::try_from(asked.connection).unwrap_or(i32::MAX),
    );
    out.append(cstr!("minWireVersion"), WIRE_VERSION_MIN);
    out.append(cstr!("maxWireVersion"), WIRE_VERSION_MAX);
    out.append(cstr!("readOnly"), false);
}

fn append_primary(out: &mut RawDocumentBuf, asked: Asked, primary: bool) {
    if asked.old_name {
        out.append(cstr!("ismaster"), primary);
    } else {
        out.append(cstr!("isWritablePrimary"), primary);
    }
}

fn append_hosts(out: &mut RawDocumentBuf, config: &SetConfig) {
    let list = |wanted: &dyn Fn(&MemberConfig) -> bool| {
        let visible = config.members.iter().filter(|member| !member.hidden);
        RawArrayBuf::from_iter(
            visible
                .filter(|member| wanted(member))
                .map(|member| member.host.as_str()),
        )
    };
    let passive = |member: &MemberConfig| !member.arbiter_only && member.priority == 0.0;
    out.append(
        cstr!("hosts"),
        list(&|member| !member.arbiter_only && !passive(member)),
    );
    let passives = list(&passive);
    if !passives.is_empty() {
        out.append(cstr!("passives"), passives);
    }
    let arbiters = list(&|member| member.arbiter_only);
    if !arbiters.is_empty() {
        out.append(cstr!("arbiters"), arbiters);
    }
}

fn append_member(out: &mut RawDocumentBuf, member: &MemberConfig, asked: Asked) {
    if member.arbiter_only {
        out.append(cstr!("arbiterOnly"), true);
    }
    if member.priority == 0.0 && !member.arbiter_only {
        out.append(cstr!("passive"), true);
    }
    if member.hidden {
        out.append(cstr!("hidden"), true);
    }
    if member.delay_seconds > 0 {
        let name = match asked.old_name {
            true => cstr!("slaveDelay"),
            false => cstr!("secondaryDelaySecs"),
        };
        out.append(name, member.delay_seconds);
    }
    if !member.tags.is_empty() {
        out.append(cstr!("tags"), member.tags.clone());
    }
}
