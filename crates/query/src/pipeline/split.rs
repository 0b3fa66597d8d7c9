//! Dividing a pipeline between the shards and the router.
//!
//! What handles each document by itself runs on the shards. The first stage that needs all
//! documents ends the shards' part: a `$group` is done in parts and put together on the router, a
//! `$sort` is done on each shard and the streams are merged in its order, a `$limit` and a
//! `$sample` are done on each shard and once more on the router. Everything after it is the
//! router's.

use bson::{RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::Pipeline;
use super::sort::SortKey;
use super::stage::Stage;

#[derive(Clone, Debug)]
pub struct Split {
    /// The stages to send to every shard.
    pub shard: Vec<RawDocumentBuf>,
    /// The order in which each shard's results come: merge the streams by it. None: as they come.
    pub order: Option<SortKey>,
    /// What the router does with the shards' results.
    pub merge: Pipeline,
}

/// `texts[i]` is what the user wrote for `stages[i]`.
pub(super) fn split(stages: &[Stage], texts: &[RawDocumentBuf]) -> Split {
    let alone = stages
        .iter()
        .take_while(|stage| stage.is_per_document())
        .count();
    let mut split = Split {
        shard: texts[..alone].to_vec(),
        order: None,
        merge: Pipeline::default(),
    };
    let mut rest = alone;
    match stages.get(alone) {
        Some(Stage::Group(group)) => {
            split.shard.push(group.text_for_shards());
            split
                .merge
                .add(Stage::Group(group.for_merging().into()), &texts[alone]);
            rest += 1;
        }
        Some(Stage::Sort(sort)) => {
            split.shard.push(one_stage("$sort", &sort.key.source));
            if let Some(limit) = sort.limit {
                split.shard.push(limit_stage(limit));
            }
            split.order = Some(sort.key.clone());
            rest += 1;
        }
        Some(Stage::Limit(limit)) => split.shard.push(limit_stage(*limit)),
        Some(Stage::Skip(skip)) => {
            if let Some(Stage::Limit(limit)) = stages.get(alone + 1) {
                split.shard.push(limit_stage(skip.saturating_add(*limit)));
            }
        }
        Some(Stage::Sample(_)) => split.shard.push(texts[alone].clone()),
        _ => {}
    }
    for (stage, text) in stages.iter().zip(texts).skip(rest) {
        split.merge.add(stage.clone(), text);
    }
    split
}

fn one_stage(name: &str, argument: &RawDocument) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.append_doc(name, argument);
    writer.finish()
}

fn limit_stage(limit: u64) -> RawDocumentBuf {
    let mut writer = DocumentWriter::new();
    writer.append_i64("$limit", i64::try_from(limit).unwrap_or(i64::MAX));
    writer.finish()
}
