//! Dividing a pipeline between the shards and the router.
//!
//! What handles each document by itself runs on the shards. The first stage that needs all
//! documents ends the shards' part: a `$group` is done in parts and put together on the router, a
//! `$sort` is done on each shard and the streams are merged in its order, a `$limit` and a
//! `$sample` are done on each shard and once more on the router. Everything after it is the
//! router's.

use bson::RawDocumentBuf;

use super::drop_fields::DropFields;
use super::sequence::Pipeline;
use super::sort_key::SortKey;
use super::stage::Division;
use crate::metadata::Metadata;

#[derive(Clone, Debug)]
pub struct Split {
    /// The stages to send to every shard.
    pub shard: Vec<RawDocumentBuf>,
    /// The order in which each shard's results come: merge the streams by it. None: as they come.
    pub order: Option<SortKey>,
    /// What the router does with the shards' results.
    pub merge: Pipeline,
}

impl Pipeline {
    /// The part for the shards and the part for the router.
    pub fn split(&self) -> Split {
        split(self)
    }
}

impl Split {
    /// Whether all that they ask for is what the documents are sorted by, in the order in which the
    /// shards' results are merged.
    pub fn asks_sort_key_alone(&self) -> bool {
        let others = self.merge.metadata().without(Metadata::SortKey);
        self.order.is_some() && others.is_empty()
    }

    /// Whether the router's stages ask what only the shards know of the documents.
    pub fn asks_metadata(&self) -> bool {
        self.merge
            .stages()
            .any(|stage| DropFields::Metadata.is(&**stage))
    }
}

fn split(pipeline: &Pipeline) -> Split {
    let mut split = Split {
        shard: Vec::new(),
        order: None,
        merge: pipeline.without_stages(),
    };
    let mut stages = pipeline.stages();
    for stage in stages.by_ref() {
        match stage.split() {
            Division::Shards => {
                split.shard.push(stage.to_document());
                continue;
            }
            Division::Both {
                shards,
                order,
                router,
            } => {
                let documents = shards.iter().map(|stage| stage.to_document());
                split.shard.extend(documents);
                split.order = order;
                router.into_iter().for_each(|stage| split.merge.push(stage));
            }
            Division::Router => split.merge.push(stage.clone()),
        }
        break;
    }
    stages.for_each(|stage| split.merge.push(stage.clone()));
    split
}
