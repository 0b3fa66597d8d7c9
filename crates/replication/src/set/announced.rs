//! The configuration that a newcomer is told of before it has any of the set's log.
//!
//! The log brings the configuration, and that is what a member goes by. Until it has come that far
//! (a large state may take minutes to fetch) the members' heartbeats tell the newcomer what it is
//! about to belong to, so that `rs.status()`, `rs.conf()` and `hello` on it say that. It is kept in
//! memory, decides nothing, and is dropped as soon as the log has brought as much.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bson::RawDocument;

use super::config::SetConfig;
use super::health::Heartbeat;
use super::{Announced, ReplicationCoordinator};

impl ReplicationCoordinator {
    pub(super) fn announced(&self) -> Option<Announced> {
        self.announced.read().clone()
    }

    /// The configuration to be shown: the one that the log has brought, or a later one that this
    /// member was told of and that the log has not brought yet.
    pub fn shown_config(&self) -> Option<Arc<SetConfig>> {
        let announced = self.announced().map(|announced| announced.config);
        announced.or_else(|| self.config())
    }

    /// The host by which the configuration that is shown knows this member.
    pub fn shown_host(&self) -> Option<String> {
        let announced = self.announced().map(|announced| announced.host);
        announced.or_else(|| self.own_host())
    }

    /// A member of a set says that this one is its member `host` by a configuration. One that makes
    /// no sense, or that is not about this member, is passed over: it is only to be shown.
    pub fn note_announcement(&self, document: &RawDocument, host: &str) {
        let Ok(config) = SetConfig::parse(document) else {
            return;
        };
        if !self.may_be_announced(&config, host) {
            return;
        }
        let mut announced = self.announced.write();
        let known = announced.as_ref().map(|known| known.config.version);
        if known.is_some_and(|version| version >= config.version) {
            return;
        }
        tracing::info!(
            set = config.name,
            version = config.version,
            host,
            "told of a set"
        );
        if self.removed_in.load(Ordering::Acquire) < config.version {
            self.removed_in.store(0, Ordering::Release);
        }
        *announced = Some(Announced {
            config: Arc::new(config),
            host: host.to_owned(),
        });
        drop(announced);
        // The log may have brought it in this moment.
        self.forget_announcement(self.config().map_or(-1, |config| config.version));
        self.topology_changed();
        self.pulse.notify_one();
    }

    fn may_be_announced(&self, config: &SetConfig, host: &str) -> bool {
        let Some(status) = self.status() else {
            return false;
        };
        if !self.is_replica_set() || config.by_host(host).is_none() {
            return false;
        }
        let own = status.membership.get(self.id);
        match self.config() {
            // A directory with a history of its own is no newcomer.
            None => {
                let fresh = status.membership.members.is_empty();
                self.set_name().is_some_and(|name| name == config.name)
                    && (fresh || own.is_some_and(|own| !own.voter))
            }
            Some(known) => {
                let listed = self.own_in(&known, &status).is_some();
                let id = known.settings.replica_set_id;
                id.is_some()
                    && id == config.settings.replica_set_id
                    && known.version < config.version
                    && !listed
            }
        }
    }

    /// The log has brought a configuration: what was said before it is of no interest any more.
    pub(super) fn forget_announcement(&self, version: i64) {
        let mut announced = self.announced.write();
        if announced
            .as_ref()
            .is_some_and(|announced| announced.config.version <= version)
        {
            *announced = None;
        }
    }

    /// A still later configuration may do without this member after all.
    pub(super) fn note_withdrawal(&self, heartbeat: &Heartbeat) {
        let Some(announced) = self.announced() else {
            return;
        };
        let same = announced.config.settings.replica_set_id == heartbeat.replica_set_id;
        let newer = heartbeat.config_version > announced.config.version;
        if same && newer && !heartbeat.lists_asker {
            self.forget_announcement(announced.config.version);
            self.topology_changed();
        }
    }
}
