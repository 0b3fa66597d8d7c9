//! What a shard key demands of a collection's indexes.

use std::sync::Arc;

use banyan_node::errors::shown;
use banyan_node::role::{IndexLoss, IndexRules};
use banyan_sharding::ShardKeyPattern;
use banyan_storage::Index;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use super::keys::{leads_with, serves};
use super::metadata::Filter;

/// The rules of a collection that is sharded as this table says.
pub struct ShardKeyRules {
    filter: Arc<Filter>,
}

impl ShardKeyRules {
    pub fn new(filter: Arc<Filter>) -> ShardKeyRules {
        ShardKeyRules { filter }
    }

    fn pattern(&self) -> &ShardKeyPattern {
        self.filter.table.pattern()
    }
}

impl IndexRules for ShardKeyRules {
    /// What is unique on each shard has to be unique among all of them.
    fn check_new(&self, spec: &RawDocument) -> Result<(), CommandError> {
        let unique = spec.get_bool("unique").unwrap_or(false);
        let Ok(key) = spec.get_document("key") else {
            return Ok(());
        };
        if !unique || self.pattern().keeps_unique(key) {
            return Ok(());
        }
        let message = format!(
            "cannot create index with 'unique' or 'prepareUnique' option over {} with shard \
             key pattern {}",
            shown(RawBsonRef::Document(key)),
            self.pattern()
        );
        Err(CommandError::new(ErrorCode::CannotCreateIndex, message))
    }

    fn keeps(&self, index: &Index) -> bool {
        leads_with(index, self.pattern())
    }

    /// Chunks are ranges of an index: without it none can be measured, cut, moved or removed.
    fn check_loss(
        &self,
        index: &Index,
        others: &[&Index],
        loss: IndexLoss,
    ) -> Result<(), CommandError> {
        let pattern = self.pattern();
        let is_needed = serves(index, pattern) && !index.hidden;
        let replaced = others
            .iter()
            .any(|other| serves(other, pattern) && !other.hidden);
        if !is_needed || replaced {
            return Ok(());
        }
        Err(match loss {
            IndexLoss::Dropped => CommandError::new(
                ErrorCode::CannotDropShardKeyIndex,
                "Cannot drop the only compatible index for this collection's shard key",
            ),
            IndexLoss::Hidden => CommandError::new(
                ErrorCode::InvalidOptions,
                "Can't hide the only compatible index for this collection's shard key",
            ),
        })
    }
}
