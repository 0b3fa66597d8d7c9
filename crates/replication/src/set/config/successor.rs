//! What a reconfiguration may not do.

use banyan_wire::{CommandError, ErrorCode};

use super::{MemberConfig, SetConfig};

pub(super) fn incompatible(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::NewReplicaSetConfigurationIncompatible, message)
}

impl SetConfig {
    /// Whether `new` may follow this configuration.
    pub fn check_successor(&self, new: &SetConfig, force: bool) -> Result<(), CommandError> {
        // What is wrong with a new configuration as such has the code of a reconfiguration.
        new.check().map_err(|error| incompatible(error.message))?;
        let id = self.settings.replica_set_id;
        if id != new.settings.replica_set_id {
            return Err(incompatible(format!(
                "New and old configurations differ in replica set ID; old was {}, and new is {}",
                id.unwrap_or_default(),
                new.settings.replica_set_id.unwrap_or_default()
            )));
        }
        if self.config_server != new.config_server {
            return Err(incompatible(
                "New and old configurations differ in the setting of the \"configsvr\" field",
            ));
        }
        if !force && new.version <= self.version {
            return Err(incompatible(format!(
                "New replica set configuration version and term must be greater than old, but \
                 {} is not greater than {} for replica set {}",
                new.version_and_term(),
                self.version_and_term(),
                self.name
            )));
        }
        for member in &new.members {
            self.check_member(member)?;
        }
        if !force && self.changed_voters(new) > 1 {
            return Err(incompatible(
                "Non force replica set reconfig can only add or remove at most 1 voting member.",
            ));
        }
        Ok(())
    }

    fn check_member(&self, member: &MemberConfig) -> Result<(), CommandError> {
        let same_host = self.by_host(&member.host);
        if let Some(old) = same_host.filter(|old| old.id != member.id) {
            return Err(incompatible(format!(
                "New and old configurations both have members with host of {} but in the new \
                 configuration the _id field is MemberId({}) and in the old configuration it is \
                 MemberId({}) for replica set {}",
                member.host, member.id, old.id, self.name
            )));
        }
        let Some(old) = self.members.iter().find(|old| old.id == member.id) else {
            return Ok(());
        };
        for (field, differs) in [
            ("buildIndexes", old.build_indexes != member.build_indexes),
            ("arbiterOnly", old.arbiter_only != member.arbiter_only),
        ] {
            if differs {
                return Err(incompatible(format!(
                    "New and old configurations differ in the setting of the {field} field for \
                     member {}; to make this change, remove then re-add the member",
                    member.host
                )));
            }
        }
        Ok(())
    }

    /// Newcomers do not count: they vote only once they have caught up, one after the other.
    fn changed_voters(&self, new: &SetConfig) -> usize {
        let by_id = |config: &SetConfig, id: i64| -> Option<bool> {
            let found = config.members.iter().find(|member| member.id == id);
            found.map(|member| member.votes)
        };
        let gained = new
            .voters()
            .filter(|member| by_id(self, member.id) == Some(false));
        let lost = self
            .voters()
            .filter(|member| by_id(new, member.id) != Some(true));
        gained.count() + lost.count()
    }
}
